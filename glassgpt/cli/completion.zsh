# TAB for glass, in zsh:  source <(glass completion zsh)

_glass() {
    local -a offers
    offers=("${(@f)$(glass completion --line="${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    offers=(${offers:#})
    if (( ! $#offers )); then
        compset -P '*='
        _files
        return
    fi
    compadd -Q -S '' -- ${(M)offers:#*=}
    compadd -Q -- ${offers:#*=}
}

compdef _glass glass
