# TAB for glass, in fish:  glass completion fish > ~/.config/fish/completions/glass.fish

function __glass_offers
    set -l offers (glass completion --line=(commandline --cut-at-cursor --current-process | string collect) 2>/dev/null)
    if test -n "$offers"
        printf '%s\n' $offers
        return
    end
    set -l word (commandline --current-token --cut-at-cursor)
    if string match -q -- '--*=*' $word
        set -l flag (string replace -r '=.*' '=' -- $word)
        for path in (__fish_complete_path (string replace -r '^[^=]*=' '' -- $word))
            printf '%s%s\n' $flag $path
        end
    else
        __fish_complete_path $word
    end
end

complete --command glass --no-files --arguments '(__glass_offers)'
