package alone

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// TestLogOfAKubelet: it is as the configuration file says, whatever becomes of the kubelet.
func TestLogOfAKubelet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nlogging: {format: json, verbosity: 6}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range Components {
		if c.Name != "kubelet" {
			continue
		}
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		p := c.New(f)
		if err := f.Parse([]string{"--config=" + file, "--kubeconfig=/none", "--hostname-override=-"}); err != nil {
			t.Fatal(err)
		}
		format, verbosity := "", -1
		p.LogBy(Log{FromFile: func(name string, level *int) {
			format = name
			if level != nil {
				verbosity = *level
			}
		}})
		if err := p.Run(t.Context()); err == nil {
			t.Error("a kubelet of no name runs")
		}
		if format != "json" || verbosity != 6 {
			t.Errorf("the log is %q at level %d", format, verbosity)
		}
		if !Verbose(verbosity) || Verbose(3) {
			t.Error("levels")
		}
	}
}

// TestOpenFiles: the limit is set as it was asked for.
func TestOpenFiles(t *testing.T) {
	var before, now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := openFiles(int64(before.Max)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil || now.Cur != before.Max || now.Max != before.Max {
		t.Errorf("%+v, %v", now, err)
	}
}
