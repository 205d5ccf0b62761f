# Two guests with different weights work on one engine at once, each checking
# every result; how the engine's time was shared is read from vgpud.

boot_limit=300
engine=bcs
[ "$LAB_SHORT" = 1 ] && window=20 || window=60
# A request is much longer on the GPU than it takes to submit and to verify, and
# than a guest takes to hear that one is done: a register access is a thousand
# times slower here than on a real host, and the guests share a CPU.
# Each has a context of its own: then a guest's driver has the GPU take two at
# once, and the next one waits there when one is done.
work="--engine $engine --passes 128 --buffers 4 --contexts 4"

fact engine "${engine}0"

# snapshot TAG: all vGPUs' counters at once, and when.
snapshot() {
    [ "$LAB_DEVICE" = 1 ] || return 0
    before=$(uptime_now)
    ask "inspect/gpu-$1" inspect --json
    fact "snapshot/$1" "$before $(uptime_now)"
}

# vgpud knows a guest that comes again by its UUID.
uuid=2f4cc2a5-9f0c-4b4e-8f0e-8b1ff0a1c0d1
kept="weight=250,cap=50"

[ "$LAB_DEVICE" = 1 ] && stage "vgpud starts" && start_vgpud

for guest in "g1 100" "g2 300"; do
    name=${guest% *}
    weight=${guest#* }
    fact "weight/$name" "$weight"
    [ "$name" = g1 ] && uuid_line="uuid = \"$uuid\"" || uuid_line=
    guest_config "$name" "" "$(vgpu_line "weight=$weight")" "$uuid_line"
    stage "xl create $name, weight $weight"
    guest_create "$name"
    stage "guest $name boots"
    guest_ready "$name" $boot_limit
    stage "$name: i915 is loaded"
    guest_do "$name" 300 i915 bind
    inspect "$name" probe
done

stage "both guests work on ${engine}0"
for name in g1 g2; do
    # shellcheck disable=SC2086 # the options are words
    guest_do "$name" 60 work start share $work --seed "${name#g}"
done
for name in g1 g2; do
    guest_wait "$name" '^LAB work/share .*"verified":[1-9]' 120 "first verified buffer"
done
# Past the start of the second one, which the first had to itself.
sleep 3

stage "$window s of both at work"
snapshot before
sleep $window
snapshot after
[ "$LAB_DEVICE" = 1 ] && timeout 60 vgpuctl trace -n 2000 >/results/trace.txt 2>&1

stage "what they get is changed, and watched"
fact kept "$kept"
# shellcheck disable=SC2046 # a word for each key
ask set set "$(cat /run/domid-g1)" $(echo "$kept" | tr , ' ')
ask top top --batch -n 2

stage "both stop"
for name in g1 g2; do
    guest_do "$name" 60 work stop share
done
for name in g1 g2; do
    guest_wait "$name" '^LAB work-exit/share ' 120 "end of gpu-work"
    guest_do "$name" 120 i915 complaints
done

stage "both guests go"
guest_start g1 poweroff
guest_start g2 poweroff
guest_gone g1 60
guest_gone g2 60

if [ "$LAB_DEVICE" = 1 ]; then
    stage "vgpud starts anew, and g1 as g3, which it remembers"
    stop_vgpud
    start_vgpud
    guest_config g3 "" "$(vgpu_line weight=100)" "uuid = \"$uuid\""
    guest_create g3
    ask again list
    xl destroy g3
    guest_gone g3 60
fi
daemons_end
