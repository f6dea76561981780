package dev

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// traces are what of this machine has a name made from a cluster's directories:
// links, nftables tables, mounts, control groups, files in /run and of CNI, and
// processes. Other clusters on this machine come and go meanwhile.
func traces(t *testing.T, w *world) (found []string) {
	t.Helper()
	marks := []string{w.base, hashed("knarr-dev-", w.dir()), hashed("kdev", w.dir())}
	for _, n := range w.nodes {
		marks = append(marks, hashed("-", filepath.Join(w.dir(), n)))
	}
	look := func(kind, name string) {
		for _, m := range marks {
			if strings.Contains(name, m) {
				found = append(found, kind+" "+name)
				return
			}
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		look("link", l.Attrs().Name)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, tb := range tables {
		look("table", tb.Name)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		look("mount", strings.Fields(line)[4])
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			look("cgroup", path)
		}
		return nil
	})
	for _, pattern := range []string{"/run/*", "/var/lib/cni/results/*", "/proc/[0-9]*/cmdline"} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if strings.HasPrefix(f, "/proc/") {
				line, _ := os.ReadFile(f)
				look("process", f+" "+strings.ReplaceAll(string(line), "\x00", " "))
			} else {
				look("file", f)
			}
		}
	}
	for _, f := range w.forwarding {
		if _, err := os.Stat(f); err == nil {
			found = append(found, "file "+f)
		}
	}
	return found
}

// shims are the processes that hold the containers of this cluster.
func shims(w *world) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		line, _ := os.ReadFile(f)
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil && strings.HasPrefix(string(line), w.dir()) && strings.Contains(string(line), "containerd-shim") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// hashed is a name that derives from a directory.
func hashed(prefix, dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return fmt.Sprintf("%s%x", prefix, sum[:3])
}

// forwardingFiles are the records of the nodes' network namespaces, which go by
// the namespace's number.
func forwardingFiles(t *testing.T, w *world) (files []string) {
	for _, n := range w.nodes {
		var st syscall.Stat_t
		if err := syscall.Stat(w.spaces()+"/"+n+".net", &st); err != nil {
			t.Fatal(err)
		}
		f := fmt.Sprintf("/run/knarr-forwarding-%d.json", st.Ino)
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
		files = append(files, f)
	}
	return files
}

// spaces is the directory of the namespaces' files.
func (w *world) spaces() string {
	return "/run/" + hashed("knarr-dev-", w.dir())
}

// anonymous is a process's anonymous memory in MB.
func anonymous(pid int) (mb float64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if n, _ := fmt.Sscanf(line, "RssAnon: %f", &mb); n == 1 {
			return mb / 1024
		}
	}
	return 0
}

// get asks from this host; "" without an answer.
func get(url string) string {
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}
