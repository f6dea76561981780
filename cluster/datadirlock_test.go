package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"knarr/internal/need"
)

func TestMarkerChange(t *testing.T) {
	server := marker{Version: 1, ClusterCIDR: "10.42.0.0/16", ServiceCIDR: "10.43.0.0/16"}
	other, services := server, server
	other.ClusterCIDR, services.ServiceCIDR = "10.44.0.0/16", "10.99.0.0/16"
	agent := marker{Version: 1, Agent: true}
	for _, c := range []struct {
		have, want marker
		reason     string
	}{
		{server, server, ""}, {agent, agent, ""},
		{agent, server, "--data-dir /d is an agent's; start it with knarr agent"},
		{server, agent, "--data-dir /d is a server's; start it with knarr server"},
		{server, other, "--cluster-cidr 10.44.0.0/16: this cluster was made with 10.42.0.0/16"},
		{server, services, "--service-cidr 10.99.0.0/16: this cluster was made with 10.43.0.0/16, which cannot be changed; give that one, and for more addresses create a ServiceCIDR"},
		{marker{}, server, "belongs to another version of knarr"},
	} {
		err := c.have.change(c.want, "/d")
		if (c.reason == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%+v then %+v: %v, want %q", c.have, c.want, err, c.reason)
		}
	}
}

func TestHolds(t *testing.T) {
	const locks = "1: FLOCK  ADVISORY  WRITE 22962 fe:00:5341572 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 7 fe:00:5341572 0 EOF\n2: POSIX  ADVISORY  WRITE 9 fe:00:77 0 EOF\n"
	for _, c := range []struct {
		pid   string
		inode uint64
		want  bool
	}{{"22962", 5341572, true}, {"22962", 341572, false}, {"7", 5341572, false}, {"9", 77, false}, {"2296", 5341572, false}} {
		if holds(locks, c.pid, c.inode) != c.want {
			t.Errorf("%s holds %d: %v", c.pid, c.inode, !c.want)
		}
	}
}

// A directory that holds images alone is taken for a new cluster, one with other files is
// not.
func TestImagesBeforeTheFirstStart(t *testing.T) {
	need.Root(t)
	l := layout{t.TempDir()}
	if err := os.MkdirAll(l.images(), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := l.dataDirLock(marker{Version: 1}, false)
	if err != nil {
		t.Fatal(err)
	}
	c.release()
	l = layout{t.TempDir()}
	if err := os.MkdirAll(filepath.Join(l.dir, "pictures"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := l.dataDirLock(marker{Version: 1}, false); err == nil {
		t.Error("a directory with other files is taken")
	}
}

// A server that ends leaves no directory of sockets, unless there are some.
func TestReleaseLeavesNothing(t *testing.T) {
	need.Root(t)
	l := layout{t.TempDir() + "/data"}
	for _, kept := range []string{"", "a"} {
		c, err := l.dataDirLock(marker{Version: 1}, false)
		if err != nil {
			t.Fatal(err)
		}
		if kept != "" {
			if err := os.WriteFile(filepath.Join(l.runDir(), kept), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(l.runDir()) })
		}
		c.release()
		if _, err := os.Stat(l.runDir()); (err == nil) != (kept != "") {
			t.Errorf("with %q: %v", kept, err)
		}
	}
}

// The lock of a process that was killed may be held for a moment by what it was just
// starting; that of one that lives is refused at once.
func TestLockOfTheKilled(t *testing.T) {
	ended := exec.Command("/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		holder int
		want   error
	}{{ended.ProcessState.Pid(), nil}, {os.Getpid(), syscall.EWOULDBLOCK}} {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lock")
			if err := os.WriteFile(path, []byte(strconv.Itoa(c.holder)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var files [2]*os.File
			for i := range files {
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				files[i] = f
			}
			if err := syscall.Flock(int(files[0].Fd()), syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(lockWait/2, func() { files[0].Close() })
			if err := takeLock(files[1]); !errors.Is(err, c.want) {
				t.Errorf("lock of process %d: %v, want %v", c.holder, err, c.want)
			}
		})
	}
}
