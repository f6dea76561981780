package main

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"knarr": main, "etcd": main, "kube-apiserver": main, "kube-controller-manager": main, "cloud-controller-manager": main})
}

// TestScripts plays what people type, the wrong things above all: each ends
// with code 1 and one line that names the cause and the cure.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "../../test/script",
		Setup: func(env *testscript.Env) error {
			// A user other than root must reach the program and the script's files.
			knarr, err := exec.LookPath("knarr")
			if err != nil {
				return err
			}
			for _, dir := range []string{filepath.Dir(knarr), filepath.Dir(filepath.Dir(knarr)), env.WorkDir, filepath.Dir(env.WorkDir)} {
				if err := os.Chmod(dir, 0o755); err != nil {
					return err
				}
			}
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "kubectl": // embedded by make build
				_, err := os.Stat("../../internal/programs/bin/kubectl.zst")
				return err == nil, nil
			}
			return false, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"port": port, "oneline": oneline, "await": await,
		},
	})
}

// port NAME... sets variables to free ports; port -taken NAME keeps one open.
func port(ts *testscript.TestScript, _ bool, args []string) {
	taken := len(args) > 0 && args[0] == "-taken"
	if taken {
		args = args[1:]
	}
	for _, name := range args {
		l, err := net.Listen("tcp", "0.0.0.0:0")
		ts.Check(err)
		_, number, err := net.SplitHostPort(l.Addr().String())
		ts.Check(err)
		ts.Setenv(name, number)
		if taken {
			ts.Defer(func() { l.Close() })
		} else {
			l.Close()
		}
	}
}

// oneline wants stderr to be one line for a user.
func oneline(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: oneline")
	}
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") || !strings.HasPrefix(text, "knarr: ") {
		ts.Fatalf("not one line that begins with knarr: %q", text)
	}
}

// await FILE blocks until the file has content.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	file := ts.MkAbs(args[0])
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := os.Stat(file)
		if err == nil && st.Size() > 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			if err == nil {
				err = fs.ErrNotExist
			}
			ts.Fatalf("await %s: %v", file, err)
		}
	}
}
