package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"knarr/internal/need"
)

// volumePrograms are packages with servers of volumes and what mounts them, unpacked and not
// installed: their services would start.
const volumePrograms = "../../build/vm-volumes"

// serveNFS exports /var/lib/shared by the kernel's server, of version 4 alone, which needs no
// rpcbind.
const serveNFS = `modprobe nfsd && mkdir -p /var/lib/shared /var/lib/nfs/v4recovery && mount -t nfsd nfsd /proc/fs/nfsd && >/var/lib/nfs/etab && echo 'nfs 2049/tcp' >/etc/services && >/etc/exports &&
echo 10 >/proc/fs/nfsd/nfsv4gracetime && rpc.mountd -N 3 && exportfs -o rw,fsid=0,no_root_squash,no_subtree_check,insecure '*:/var/lib/shared' && rpc.nfsd -N 3 -V 4 2 &&
until echo Y >/proc/fs/nfsd/v4_end_grace; do sleep 1; done; cat /proc/fs/nfsd/threads`

// serveISCSI has two targets, each with a disk of 16 MiB; the second wants a name and a
// password.
const serveISCSI = `modprobe target_core_file && modprobe iscsi_target_mod && modprobe iscsi_tcp && modprobe sd_mod && mount -t configfs configfs /sys/kernel/config
cd /sys/kernel/config/target && mkdir -p iscsi && for t in open closed; do
	disk=core/fileio_$([ $t = open ] && echo 0 || echo 1)/$t
	mkdir -p $disk && echo fd_dev_name=/var/lib/$t,fd_dev_size=16777216 >$disk/control && echo 1 >$disk/enable || exit 1
	group=iscsi/iqn.2026-11.test:$t/tpgt_1
	mkdir -p $group/lun/lun_0 $group/np/192.0.2.2:3260 && ln -s /sys/kernel/config/target/$disk $group/lun/lun_0/disk || exit 1
	echo 1 >$group/attrib/generate_node_acls && echo 0 >$group/attrib/demo_mode_write_protect && echo 1 >$group/attrib/cache_dynamic_acls || exit 1
	if [ $t = closed ]; then
		echo 1 >$group/attrib/authentication && echo -n somebody >$group/auth/userid && echo -n secret-of-the-test >$group/auth/password || exit 1
	else
		echo 0 >$group/attrib/authentication || exit 1
	fi
	echo 1 >$group/enable || exit 1
done
mkdir -p /run/lock/iscsi /var/lib/iscsi /etc/iscsi && echo InitiatorName=iqn.2026-11.test:guest >/etc/iscsi/initiatorname.iscsi && iscsid && echo served`

// TestVolumes has pods use volumes of an NFS server and of iSCSI targets, the kernel's own on
// the other side: files and a bare disk, read only and shared, with a password, while the
// server is gone, and nothing left on the node afterwards.
func TestVolumes(t *testing.T) {
	if !wantedCases(t).MatchString("volumes") {
		t.Skip("not asked for by RUN")
	}
	dir, err := filepath.Abs(volumePrograms)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		need.Skip(t, "needs programs of NFS and iSCSI: make vm: ", err)
	}
	g := start(t, plain, nil, func(a *initramfs) error {
		a.copy("given/volumes.yaml", "testdata/volumes.yaml")
		a.copy("given/recycled.yaml", "testdata/recycled.yaml")
		a.copy("given/recycler.yaml", "testdata/recycler.yaml")
		return a.addVolumes(dir)
	})
	exec := func(pod, command string) string { return kubectl + "exec " + pod + " -- sh -c '" + command + "'" }
	remove := func(pod string) string {
		return kubectl + "delete pod " + pod + " --timeout=240s"
	}
	for _, step := range []struct{ name, command, want string }{
		{"NFS server", serveNFS, "2\n"},
		{"iSCSI targets", serveISCSI, "served\n"},
		{"start", "rm /bin/mount; cp /given/mount /bin/mount; setsid /given/knarr server --disable servicelb,ingress,network-policy --kube-controller-manager-arg pv-recycler-pod-template-filepath-nfs=/given/recycler.yaml >/tmp/knarr.log 2>&1 </dev/null & /given/knarr wait --timeout 300s", ""},
		{"image", "/given/knarr images load /given/hello.tar", "loaded knarr.test/hello:1"},
		{"pods", kubectl + "apply -f /given/volumes.yaml && " + kubectl + "wait --for=condition=Ready pod --all --timeout=400s", "pod/raw condition met"},
		{"NFS, written", exec("nfs", "echo one >/data/a") + " && cat /var/lib/shared/a", "one\n"},
		{"NFS, read only", exec("nfs", "cat /seen/a; echo two >/seen/a; test $? != 0") + " 2>&1", "Read-only file system"},
		{"NFS, shared", exec("claimed", "cat /data/a && echo three >/data/b") + " && " + exec("nfs", "cat /data/b"), "one\nthree\n"},
		{"NFS, mount options", "grep '/shared nfs4' /proc/mounts", "vers=4.1"},
		{"NFS, emptied", "mkdir -p /var/lib/shared/scratch/d && touch /var/lib/shared/scratch/.a /var/lib/shared/scratch/d/b && " + kubectl + "apply -f /given/recycled.yaml && " +
			kubectl + "wait --for=jsonpath={.status.phase}=Bound pvc/scratch --timeout=60s && " + kubectl + "delete pvc scratch && " +
			kubectl + "wait --for=jsonpath={.status.phase}=Available pv/scratch --timeout=240s && ls -A /var/lib/shared/scratch | wc -l", "met\n0\n"},
		{"iSCSI, written", exec("iscsi", "echo four >/data/a && cat /data/a") + " && grep iscsi /proc/mounts", " ext4 rw"},
		{"iSCSI, bare disk", exec("raw", "echo five >/dev/data && busybox head -c 5 /dev/data") + " && sync && head -c 5 /var/lib/closed", "five\nfive\n"},
		{"iSCSI, initiators", "iscsiadm -m session -P 1", "Iface Initiatorname: iqn.2026-11.test:own"},
		{"the password is in no log", "! grep secret-of-the-test /tmp/knarr.log && ! " + kubectl + "get events -A -o yaml | grep secret-of-the-test", ""},
		// The kubelet goes on for the others while a server answers nothing, and the pod goes
		// once it answers again.
		{"NFS server gone", "rpc.nfsd 0 && " + kubectl + "delete pod claimed --wait=false && " + kubectl + "run other --image=knarr.test/hello:1 && " + kubectl + "wait --for=condition=Ready pod/other --timeout=240s && " +
			kubectl + "get nodes", "guest   Ready"},
		{"NFS server back", "rpc.nfsd -N 3 -V 4 2 && " + kubectl + "wait --for=delete pod/claimed --timeout=400s", ""},
		{"deleted", remove("nfs") + " && " + remove("iscsi") + " && " + remove("raw"), `pod "raw" deleted`},
		{"nothing left", "until ! grep -e nfs4 -e kubernetes.io~iscsi /proc/mounts; do sleep 1; done; until iscsiadm -m session 2>&1 | grep 'No active sessions'; do sleep 1; done; ls /sys/block | grep sd; iscsiadm -m iface | grep own; echo end", "end\n"},
		{"data stays", "cat /var/lib/shared/b && head -c 5 /var/lib/closed", "three\nfive\n"},
		{"down", "/given/knarr down --purge", ""},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			out := must(t, g, 10*time.Minute, step.command)
			t.Logf("%s", out)
			if !strings.Contains(out, step.want) || step.name == "nothing left" && (strings.Contains(out, "sd") || strings.Contains(out, "own")) {
				t.Errorf("%s\nsays %q, want %q", step.command, out, step.want)
			}
		}) {
			out, _, err := g.run(3*time.Minute, kubectl+"get pods,events -A -o wide; tail -n 60 /tmp/knarr.log; dmesg | tail -n 30; cat /proc/mounts")
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
