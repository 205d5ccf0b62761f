#!/bin/busybox sh
# /init of a guest's initial RAM disk: the root file system is read-only and
# shared by all guests; what has to be written lives in memory.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
echo "LAB initrd-uptime $(cut -d' ' -f1 /proc/uptime)"

while read -r module; do
    insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order

tries=0
until [ -b /dev/xvde ] && [ -b /dev/xvdf ]; do
    tries=$((tries + 1))
    [ $tries -gt 300 ] && echo "LAB guest-failed no xvde or xvdf" && poweroff -f
    sleep 0.1
done

mount -t ext4 -o ro,noload /dev/xvde /sysroot || { echo "LAB guest-failed xvde does not mount"; poweroff -f; }
for dir in tmp run var/tmp root; do
    mount -t tmpfs tmpfs "/sysroot/$dir"
done
mkdir -p /sysroot/run/lab
tar -xf /dev/xvdf -C /sysroot/run/lab
umount /proc /sys
mount --move /dev /sysroot/dev
exec switch_root /sysroot /run/lab/init.sh
