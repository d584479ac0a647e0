#!/bin/sh
# Links as @LINKER@ does. A library whose arguments name a folder aviary-versions gets the symbol versions that the list there says;
# its other symbols get the first of them. Lines of `*` and a version name further ones: functions that have a version answer to
# these, too, by a jump.
list= map=
for argument; do
    case $argument in
    -L*/aviary-versions) list=${argument#-L}/list ;;
    -Wl,--version-script=*) map=${argument#-Wl,--version-script=} ;;
    esac
done
if [ -s "$list" ] && [ -f "$map" ]; then
    awk -v jumps="$map.S" 'NR == FNR && $1 == "*" { further[++others] = $2; next }
        NR == FNR { version[$1] = $2; if ($3) data[$1]; if (!($2 in known)) { known[$2]; order[++count] = $2 }; next }
        /;$/ && !/[*}]/ { gsub(/[ \t;"]/, ""); v = ($0 in version) ? version[$0] : order[1]; names[v] = names[v] " " $0 ";"
            if (($0 in version) && !($0 in data)) versioned[++symbols] = $0 }
        END { for (i = 1; i <= count; i++) {
            print order[i] " {"
            if (names[order[i]] != "") print " global:" names[order[i]]
            if (i == 1) print " local: *;"
            print "};"
        }
        for (i = 1; i <= others; i++) if (!(further[i] in known)) print further[i] " { };"
        print "#ifdef __x86_64__\n#define GO jmp\n#else\n#define GO b\n#endif" >jumps
        print ".section .note.GNU-stack,\"\",%progbits\n.text" >jumps
        for (s = 1; s <= symbols; s++) {
            print ".globl aviary_jump_" s "\n.type aviary_jump_" s ",%function\naviary_jump_" s ": GO " versioned[s] >jumps
            for (i = 1; i <= others; i++) if (!(further[i] in known))
                print ".symver aviary_jump_" s "," versioned[s] "@" further[i] >jumps
        } }' "$list" "$map" >"$map.versions" && mv "$map.versions" "$map" &&
        @LINKER@ -c -o "$map.o" "$map.S" || exit 1
    set -- "$@" "$map.o"
fi
exec @LINKER@ "$@"
