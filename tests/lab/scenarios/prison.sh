# A process confined as vgpu-dm is has one guest, and reaches for another and for
# dom0. The guests never run, so what is tried on them when nothing forbids it harms
# nobody; and they have no disks, which they do not need.
for name in g1 g2; do
    guest_config "$name" ""
    sed -i '/^disk/d' "/lab/$name.cfg"
    stage "xl create $name, paused"
    guest_create "$name" -p
done
stage "g1's prisoner reaches for g2 and dom0"
timeout 200 prisoner "$(cat /run/domid-g1)" "$(cat /run/domid-g2)" >/results/prisoner.txt 2>&1
fact prisoner-exit $?
cat /results/prisoner.txt
grep '^LAB ' /results/prisoner.txt >>/results/dom0.facts
block prisoner /results/prisoner.txt
for name in g1 g2; do
    xl destroy "$name"
    guest_gone "$name" 60
done
