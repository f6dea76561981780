package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"

	"knarr/test/conformance/programs"
)

// An image is what upstream's recipe of the same name makes, on Debian.
type image struct {
	names      []string
	layers     []layer
	entrypoint []string
	cmd        []string
	user       string
	ports      []int
	driver     string // the program of a storage driver that it is made of
}

const (
	registry = "registry.k8s.io/"
	e2e      = registry + "e2e-test-images/"
	storage  = registry + "sig-storage/"
)

// sets are the archives: what conformance specs run, what others do besides, and what
// test/vm takes into its guest, whose memory holds it. eviction has those of specs
// that write, or take memory, until pods are evicted.
var sets = map[string][]image{"conformance": conformance, "beyond": beyond, "agnhost": conformance[1:2], "eviction": {conformance[0], conformance[1], pause, perl}}

// conformance and beyond are named as test/utils/image of upstream and the
// manifests of its storage drivers name them; what each holds is upstream's
// test/images, or the driver's Dockerfile.
var conformance = []image{
	{names: []string{e2e + "busybox:1.37.0-1", e2e + "busybox:1.36.1-1"}, layers: []layer{busybox}, cmd: []string{"sh"}},
	{names: []string{e2e + "agnhost:2.63.0", e2e + "agnhost:2.55"},
		layers: []layer{busybox, tools, agnhost}, entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}, ports: []int{80, 8080, 8081, 9376, 5000}},
	{names: []string{e2e + "nautilus:1.8"}, layers: []layer{busybox, tools, agnhost, page("nautilus")},
		entrypoint: []string{"/agnhost"}, cmd: []string{"test-webserver"}, ports: []int{80}},
	{names: []string{e2e + "kitten:1.8"}, layers: []layer{busybox, tools, agnhost, page("kitten")},
		entrypoint: []string{"/agnhost"}, cmd: []string{"test-webserver"}, ports: []int{80}},
	{names: []string{e2e + "glibc-dns-testing:2.0.0"}, layers: []layer{busybox, tools, packages("coreutils")}, cmd: []string{"sh"}},
	{names: []string{e2e + "nginx:1.15-4", e2e + "nginx:1.27-0"}, layers: []layer{busybox, nginx},
		cmd: []string{"nginx", "-g", "daemon off;"}, ports: []int{80}},
	{names: []string{e2e + "nonewprivs:1.4"}, layers: []layer{busybox, one("usr/local/bin/nnp", 0o6755, program("nonewprivs"))}, cmd: []string{"nnp"}},
	{names: []string{e2e + "nonroot:1.5"}, layers: []layer{busybox}, cmd: []string{"sh"}, user: "1234"},
	{names: []string{e2e + "sample-apiserver:1.29.2"}, layers: []layer{busybox, one("sample-apiserver", 0o755, program("sample-apiserver"))},
		entrypoint: []string{"/sample-apiserver"}},
	{names: []string{registry + "etcd:3.6.8-0"}, layers: []layer{busybox, one("usr/local/bin/etcd", 0o755, program("etcd"))},
		cmd: []string{"etcd"}, ports: []int{2379, 2380}},
	pause,
}

var beyond = []image{
	// In place of the one of the set before: specs run the DNS server that is in it, and
	// the registry.
	{names: []string{e2e + "agnhost:2.63.0"}, layers: []layer{busybox, tools, agnhost, one("coredns", 0o755, (*sources).coreDNS), fakeRegistry},
		entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}, ports: []int{80, 8080, 8081, 9376, 5000}},
	{names: []string{e2e + "resource-consumer:1.14"}, layers: []layer{busybox, one("consumer", 0o755, program("consumer")),
		one("consume-cpu/consume-cpu", 0o755, program("consume-cpu")), packages("stress")}, entrypoint: []string{"/consumer"}, ports: []int{8080}},
	{names: []string{e2e + "regression-issue-74839:1.4"}, layers: []layer{busybox, one("regression-issue-74839", 0o755, program("regression-issue-74839"))},
		entrypoint: []string{"/regression-issue-74839"}},
	{names: []string{e2e + "sample-device-plugin:1.7"}, layers: []layer{busybox, one("sampledeviceplugin", 0o755, program("sample-device-plugin"))},
		entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"}},
	perl,
	{names: []string{e2e + "ipc-utils:1.4"}, layers: []layer{busybox, tools}, cmd: []string{"sh"}},
	{names: []string{registry + "build-image/distroless-iptables:v0.9.6"}, layers: []layer{busybox, packages("conntrack", "iptables")}, cmd: []string{"sh"}},
	sidecar("csi-attacher", "v4.11.0"),
	sidecar("csi-external-health-monitor-controller", "v0.17.0"),
	sidecar("csi-node-driver-registrar", "v2.16.0"),
	sidecar("csi-provisioner", "v6.1.1"),
	sidecar("csi-resizer", "v2.1.0"),
	sidecar("csi-snapshotter", "v8.5.0"),
	sidecar("hello-populator", "v1.0.1"),
	sidecar("livenessprobe", "v2.18.0"),
	sidecar("snapshot-controller", "v8.5.0"),
	sidecar("volume-data-source-validator", "v1.0.0"),
	{names: []string{storage + "hostpathplugin:v1.17.1"}, layers: []layer{busybox, driverTools, one("hostpathplugin", 0o755, driver("hostpathplugin"))},
		entrypoint: []string{"/hostpathplugin"}, driver: "hostpathplugin"},
}

var perl = image{names: []string{e2e + "perl:5.26"}, layers: []layer{busybox, packages("perl-base")}, cmd: []string{"perl"}}

// sidecar is a program that stands beside a storage driver.
func sidecar(name, version string) image {
	return image{names: []string{storage + name + ":" + version}, layers: []layer{one(name, 0o755, driver(name))}, entrypoint: []string{"/" + name}, driver: name}
}

// packages is a layer of Debian packages.
func packages(names ...string) layer {
	return layer{strings.Join(names, "+"), func(s *sources, l *files) error { return debian(s, l, names...) }}
}

// driverTools are what csi-driver-host-path runs.
var driverTools = packages("coreutils", "e2fsprogs", "mount", "socat", "tar", "util-linux", "xfsprogs")

// driver is a program that the user has put into the cache.
func driver(name string) func(*sources) (string, error) {
	return func(s *sources) (string, error) { return filepath.Join(programs.Dir(s.cache), name), nil }
}

func program(name string) func(*sources) (string, error) {
	return func(s *sources) (string, error) { return s.program(name) }
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
	group  = "root:x:0:\nnogroup:x:65534:\n"
)

// agnhost's user and group are what a spec of supplementary groups looks for. No
// other image has them: specs of volumes read the number of the group in ls.
const (
	agnhostPasswd = passwd + "user-defined-in-image:x:1000:1000::/home:/bin/sh\n"
	agnhostGroup  = group + "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
)

// printenv and nmeter are applets that Debian's busybox does not have; of the latter it is
// only the time to the millisecond, once.
const printenv = `#!/bin/sh
[ $# = 0 ] && exec env
env | sed -n "s/^$1=//p" | grep .
`

const nmeter = `#!/bin/bash-static
now=$EPOCHREALTIME
printf '%(%H:%M:%S)T.%.3s\n' "${now%.*}" "${now#*.}"
`

// busybox is the ground of every image.
var busybox = layer{"busybox", func(s *sources, l *files) error {
	path, err := s.unpacked(newest, "busybox-static", "usr/bin/busybox")
	if err != nil {
		return err
	}
	bash, err := s.unpacked(hosts, "bash-static", "bin/bash-static")
	if err != nil {
		return err
	}
	if err := l.copy("bin/bash-static", bash, 0o755); err != nil {
		return err
	}
	sh, err := s.shell()
	if err != nil {
		return err
	}
	if err := l.copy("bin/sh", sh, 0o755); err != nil {
		return err
	}
	applets, err := output(exec.Command(path, "--list"))
	if err != nil {
		return err
	}
	if err := l.copy("bin/busybox", path, 0o755); err != nil {
		return err
	}
	if err := errors.Join(l.script("bin/printenv", printenv), l.script("bin/nmeter", nmeter)); err != nil {
		return err
	}
	for applet := range strings.FieldsSeq(applets) {
		if applet == "busybox" || applet == "sh" {
			continue
		}
		if err := l.link("bin/"+applet, "/bin/busybox"); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		name string
		mode int64
	}{{"tmp", 0o1777}, {"var/tmp", 0o1777}, {"root", 0o700}, {"home", 0o755}, {"run", 0o755}} {
		if err := l.dir(d.name, d.mode); err != nil {
			return err
		}
	}
	for _, f := range [][2]string{{"passwd", passwd}, {"group", group}, {"nsswitch.conf", "hosts: files dns\n"}} {
		if err := l.text("etc/"+f[0], f[1]); err != nil {
			return err
		}
	}
	return nil
}}

// tools are what tests run in a pod.
var tools = layer{"tools", func(s *sources, l *files) error {
	if err := debian(s, l, "bash", "curl", "bind9-dnsutils", "netcat-openbsd", "iproute2", "iperf", "util-linux", "libc-bin"); err != nil {
		return err
	}
	// Debian makes its choices at installation. Busybox's shell would run its
	// own applets instead of these programs.
	return errors.Join(l.link("bin/nc", "nc.openbsd"), l.link("bin/sh", "bash"), l.script("usr/local/bin/nsenter", nsenter))
}}

// nsenter enters the node. Specs say process 1, but one of several nodes on a
// machine has none of its own, and not every machine lets one look into it: then
// it is the process whose network the pod shares.
const nsenter = `#!/bin/sh
if [ "$1" = --mount=/rootfs/proc/1/ns/mnt ]; then
	for p in /rootfs/proc/[0-9]*; do
		if [ "$(cat "$p/comm" 2>/dev/null)" = knarr ] && [ "$(readlink "$p/ns/net")" = "$(readlink /proc/self/ns/net)" ]; then
			shift
			exec /usr/bin/nsenter --mount="$p/ns/mnt" "$@"
		fi
	done
fi
exec /usr/bin/nsenter "$@"
`

var agnhost = layer{"agnhost", func(s *sources, l *files) error {
	path, err := s.program("agnhost")
	if err != nil {
		return err
	}
	if err := l.copy("agnhost", path, 0o755); err != nil {
		return err
	}
	if err := l.link("agnhost-2", "agnhost"); err != nil {
		return err
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		path, err := s.kubernetes("test/images/agnhost/porter/" + name)
		if err != nil {
			return err
		}
		if err := l.copy(name, path, 0o644); err != nil {
			return err
		}
	}
	if err := errors.Join(l.text("etc/passwd", agnhostPasswd), l.text("etc/group", agnhostGroup)); err != nil {
		return err
	}
	// The file that a spec of image volumes looks for. This is no Alpine, but
	// stands for the image that is.
	if err := l.text("etc/os-release", "NAME=\"Alpine Linux\"\nID=alpine\n"); err != nil {
		return err
	}
	return l.dir("uploads", 0o755)
}}

// page is what the update demo's images show.
func page(name string) layer {
	return layer{name, func(s *sources, l *files) error {
		for _, f := range []string{name + ".jpg", "data.json"} {
			path, err := s.kubernetes("test/images/" + name + "/html/" + f)
			if err != nil {
				return err
			}
			if err := l.copy(f, path, 0o644); err != nil {
				return err
			}
		}
		return nil
	}}
}

const nginxConf = `error_log /dev/stderr notice;
pid /var/run/nginx.pid;
user nobody nogroup;
events {}
http {
  access_log /dev/stdout;
  server {
    listen 80;
    location / { root /usr/share/nginx/html; }
  }
}
`

var nginx = layer{"nginx", func(s *sources, l *files) error {
	if err := debian(s, l, "nginx"); err != nil {
		return err
	}
	if err := l.dir("var/run", 0o755); err != nil {
		return err
	}
	return l.text("etc/nginx/nginx.conf", nginxConf)
}}
