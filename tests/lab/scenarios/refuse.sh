# What must not start does not start, and says why: a bad vgpu= line, a taken
# slot, no vgpud.

# refused NAME: what xl create said and how it ended; nothing may be left.
refused() {
    start=$(uptime_now)
    xl create "/lab/$1.cfg" >"/results/xl-create-$1.txt" 2>"/results/xl-create-$1.err"
    fact "exit/$1" $?
    fact "seconds/$1" "$(since "$start")"
    block "stdout/$1" "/results/xl-create-$1.txt"
    block "stderr/$1" "/results/xl-create-$1.err"
    log="/var/log/xen/qemu-dm-$1.log"
    [ -f "$log" ] && block "log/$1" "$log"
    # libxl removes a domain whose device model failed after it answers.
    tries=0
    while [ "$(xenstore-list /local/domain | wc -l)" -gt 1 ] && [ $tries -lt 40 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    fact "domains/$1" "$(xenstore-list /local/domain | wc -l)"
}

guest_config key "" 'vgpu = ["type=bdw,colour=red"]'
guest_config type "" 'vgpu = ["type=voodoo"]'
guest_config slot "" 'vgpu = ["type=bdw,slot=2"]'
guest_config taken '"-device", "edu,addr=0x11"' 'vgpu = ["type=bdw,slot=17"]'
guest_config lonely "" 'vgpu = ["type=bdw"]'

for name in key type slot taken; do
    stage "xl create with a bad vgpu= line: $name"
    refused "$name"
done
stage "xl create without vgpud"
refused lonely
