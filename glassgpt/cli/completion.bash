# TAB for glass, in bash:  source <(glass completion bash)

_glass() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
    COMPREPLY=($(glass completion --line="$line" 2>/dev/null))
    # bash takes what follows a = for a word of its own.
    local word="${line##* }"
    if [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}")
    fi
    if [[ "${COMPREPLY[0]}" == *= || "${COMPREPLY[0]}" == */ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

complete -o default -F _glass glass
