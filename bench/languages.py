"""Tokens per character of a BPE learned with GPT-2's word pattern and with ours, language by language.

    python -m bench.languages

English, Hindi and Arabic are the sentences of GlassGPT's own catalogues: the same sentences three times. Code is
a part of Python's standard library. Of these, a tenth of the lines is left out of learning, and measured. Chinese
and Thai are learned from sentences put together at random, and measured on prose, all of it below. Prints the
table in docs/prepare.md, and last one JSON document.
"""

# ruff: noqa: E501  the lists of parts

from __future__ import annotations

import argparse
import json
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from babel.messages.pofile import read_po
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import glassgpt
from glassgpt.data.bpe import train_bpe

VOCABULARY = 2048
HELD_OUT_EVERY = 10  # one line of so many is measured

# Parts of a sentence in their order; a line is one of each.
CHINESE = """
今天早上 昨天晚上 下个星期 去年冬天 每年春天 天黑以后 下雨的时候 吃过午饭 考试之前 放假期间 很久以前 从那时起
年轻的老师 隔壁的邻居 我的外婆 那位医生 几个学生 图书馆的管理员 卖水果的商人 写程序的朋友 村里的木匠 火车上的乘客 弹钢琴的姑娘 退休的工程师
在河边 在厨房里 在玻璃房子里 在山脚下 在旧书店门口 在安静的院子里 在海边的小镇 在学校的操场上 在城市的另一头 在窗户旁边
慢慢地 高兴地 仔细地 忽然 又一次 已经 正在 常常 偷偷地 认真地 一边唱歌一边 不得不
修理 寻找 讨论 整理 观察 记录 打扫 画出 解释 检查 介绍 忘记
一台很旧的收音机 关于天气的故事 许多黄色的树叶 自己写的日记 模型犯下的错误 三百张老照片 河水的温度 明天的计划 一封没有署名的信 那张木头桌子 孩子们的问题 训练用的数据
，因为时间不够了。 ，但是谁也没有注意。 ，然后回家睡觉。 ，所以大家都很放心。 ，结果比想象的好。 ，直到太阳下山。 ，这让人觉得奇怪。 ，只用了半个小时。 ，后来写成了一本书。 ，并且保存了下来。
"""
THAI = """
เมื่อเช้านี้ เมื่อคืนก่อน สัปดาห์หน้า ปีที่แล้ว ทุกฤดูร้อน หลังจากมืดแล้ว ตอนฝนตก หลังกินข้าวเที่ยง ก่อนสอบ ช่วงวันหยุด นานมาแล้ว ตั้งแต่นั้นมา
ครูหนุ่ม เพื่อนบ้าน คุณยายของฉัน หมอคนนั้น นักเรียนหลายคน คนดูแลห้องสมุด แม่ค้าขายผลไม้ เพื่อนที่เขียนโปรแกรม ช่างไม้ในหมู่บ้าน ผู้โดยสารบนรถไฟ หญิงสาวที่เล่นเปียโน วิศวกรที่เกษียณแล้ว
ที่ริมแม่น้ำ ในครัว ในบ้านกระจก ที่เชิงเขา หน้าร้านหนังสือเก่า ในสวนที่เงียบสงบ ในเมืองเล็กริมทะเล บนสนามของโรงเรียน ที่อีกฟากหนึ่งของเมือง ข้างหน้าต่าง
ค่อยๆ ดีใจที่ได้ ตั้งใจ เริ่ม กลับมา ได้ กำลัง มักจะ แอบ พยายาม ร้องเพลงพลาง จำเป็นต้อง
ซ่อม ค้นหา พูดคุยเรื่อง จัดเก็บ สังเกต บันทึก ทำความสะอาด วาดรูป อธิบาย ตรวจสอบ แนะนำ ลืม
วิทยุเครื่องเก่า นิทานเกี่ยวกับอากาศ ใบไม้สีเหลืองมากมาย สมุดบันทึกของตัวเอง ความผิดพลาดของแบบจำลอง รูปถ่ายเก่าสามร้อยใบ อุณหภูมิของน้ำ แผนของวันพรุ่งนี้ จดหมายที่ไม่ได้ลงชื่อ โต๊ะไม้ตัวนั้น คำถามของเด็กๆ ข้อมูลที่ใช้ฝึก
เพราะเวลาไม่พอ แต่ไม่มีใครสังเกตเห็น แล้วก็กลับบ้านไปนอน ทุกคนจึงสบายใจ ผลที่ได้ดีกว่าที่คิด จนพระอาทิตย์ตก ซึ่งทำให้รู้สึกแปลก ใช้เวลาแค่ครึ่งชั่วโมง ต่อมาจึงเขียนเป็นหนังสือ และเก็บรักษาไว้
"""
# What is measured: prose with other words.
CHINESE_PROSE = """
清晨的阳光照进玻璃房子，每一个房间都看得清清楚楚。住在里面的人习惯把东西放得整整齐齐，因为什么都藏不住。
我们今天要训练一个小小的语言模型。它每次只看一段文字，然后猜下一个字是什么。猜错了，就调整一点点参数。
昨天晚上下了一场大雨，河里的水涨高了不少。孩子们放学以后站在桥上看水，老师叫他们早点回家。
他喜欢在安静的图书馆里看书，遇到不认识的字就查字典。一本书看完了，他会写几句话，记下自己的想法。
医生说要多喝水，多走路，少生气。朋友听了以后笑了，说这三件事里面，最后一件最难做到。
"""
THAI_PROSE = """
ตอนเช้าแสงแดดส่องเข้ามาในบ้านกระจก ทุกห้องมองเห็นได้ชัดเจน คนที่อยู่ข้างในจึงชอบเก็บของให้เป็นระเบียบ เพราะซ่อนอะไรไว้ไม่ได้เลย
วันนี้เราจะฝึกแบบจำลองภาษาขนาดเล็ก มันอ่านข้อความทีละช่วงแล้วทายว่าตัวอักษรต่อไปคืออะไร ถ้าทายผิดก็ปรับค่าทีละนิด
เมื่อคืนฝนตกหนักมาก น้ำในแม่น้ำสูงขึ้นไม่น้อย เด็กๆ เลิกเรียนแล้วไปยืนดูน้ำบนสะพาน ครูจึงเรียกให้กลับบ้านเร็วๆ
เขาชอบอ่านหนังสือในห้องสมุดที่เงียบสงบ เจอคำที่ไม่รู้จักก็เปิดพจนานุกรม อ่านจบเล่มหนึ่งก็เขียนความคิดของตัวเองไว้สองสามประโยค
หมอบอกให้ดื่มน้ำมากๆ เดินมากๆ และโกรธให้น้อยลง เพื่อนฟังแล้วหัวเราะ บอกว่าในสามข้อนี้ ข้อสุดท้ายทำยากที่สุด
"""


def compose_lines(parts: str, lines: int = 1500) -> list[str]:
    """Random sentences from a fixed seed."""
    rng = random.Random(0)
    slots = [line.split() for line in parts.strip().splitlines()]
    return ["".join(rng.choice(slot) for slot in slots) for _ in range(lines)]


def language_lines() -> dict[str, tuple[list[str], list[str]]]:
    """Of each language the lines to learn from, and those to measure."""
    locale = Path(glassgpt.__file__).parent / "locale"
    sentences: dict[str, list[str]] = {"English": [], "Hindi": [], "Arabic": []}
    for language, code in (("Hindi", "hi"), ("Arabic", "ar")):
        with (locale / code / "LC_MESSAGES" / "glassgpt.po").open("rb") as file:
            messages = [message for message in read_po(file) if message.id]
        sentences["English"] = [_first(message.id) for message in messages]
        sentences[language] = [_first(message.string) for message in messages]
    modules = ("argparse.py", "dataclasses.py", "pathlib.py", "subprocess.py", "tarfile.py", "textwrap.py")
    library = Path(sysconfig.get_path("stdlib"))
    sentences["code"] = [
        line for name in modules for line in (library / name).read_text("utf-8").splitlines()
    ]
    found = {
        language: ([line for i, line in enumerate(lines) if i % HELD_OUT_EVERY], lines[::HELD_OUT_EVERY])
        for language, lines in sentences.items()
    }
    found["Chinese"] = (compose_lines(CHINESE), CHINESE_PROSE.split("\n"))
    found["Thai"] = (compose_lines(THAI), THAI_PROSE.split("\n"))
    return found | {"code": found.pop("code")}  # last


def _first(text: str | Sequence[str] | None) -> str:
    """Of a sentence in singular and plural, the singular."""
    return text if isinstance(text, str) else (text or [""])[0]


def measure_tokens_per_character(learned_from: str, text: str, vocabulary: int) -> dict[str, float]:
    """Tokens per character of `text`, with either pattern."""
    with_gpt2s = Tokenizer(models.BPE())
    with_gpt2s.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with_gpt2s.train_from_iterator([learned_from], trainer)
    ours = train_bpe([learned_from], vocabulary)
    return {
        "learned_from": len(learned_from),
        "measured_on": len(text),
        "gpt2": len(with_gpt2s.encode(text).ids) / len(text),
        "ours": len(ours.encode(text)) / len(text),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    vocabulary = parser.parse_args().vocabulary
    lines = {
        language: ("\n".join(one), "\n".join(other)) for language, (one, other) in language_lines().items()
    }
    found = {language: measure_tokens_per_character(*pair, vocabulary) for language, pair in lines.items()}
    print("| | characters learned from | measured on | GPT-2's pattern | `bpe:N` |")
    print("|---|---|---|---|---|")
    for language, row in found.items():
        sizes = f"{row['learned_from']:,} | {row['measured_on']:,}"
        print(f"| {language} | {sizes} | {row['gpt2']:.3f} | {row['ours']:.3f} |")
    print(json.dumps({"vocabulary": vocabulary, "tokens_per_character": found}))


if __name__ == "__main__":
    main()
