package network

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"knarr/internal/need"
)

// TestServe: the process does what the plugin is asked, a command that fails too; where
// there is none, or it has ended, the plugin does it.
func TestServe(t *testing.T) {
	need.Root(t)
	conf := Conf{CNIVersion: "1.0.0", Name: "test", Bridge: "knarr-none", Table: "knarr-none", StateDir: t.TempDir(), PodCIDRs: prefixes("10.9.1.0/24")}
	env := map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "nobody", "CNI_IFNAME": "eth0"}
	plugin := func(c Conf) (string, int) {
		t.Helper()
		in, err := json.Marshal(c)
		must(t, err)
		var out bytes.Buffer
		code := Main(func(k string) string { return env[k] }, bytes.NewReader(in), &out)
		return out.String(), code
	}
	asked := func(c Conf) error {
		in, err := json.Marshal(c)
		must(t, err)
		res, err := ask(request{env, in})
		if err == nil && (res.Code == 0) != (len(res.Output) == 0) {
			t.Errorf("code %d with %q", res.Code, res.Output)
		}
		return err
	}
	if err := asked(conf); err == nil {
		t.Fatal("somebody answers")
	}
	if out, code := plugin(conf); code != 0 {
		t.Errorf("nobody serves: %s", out)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, conf.StateDir) }()
	for until := time.Now().Add(10 * time.Second); asked(conf) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("not served: ", asked(conf))
		}
	}
	if info, err := os.Stat(filepath.Join(conf.StateDir, socketName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if out, code := plugin(conf); code != 0 || out != "" {
		t.Errorf("code %d, %s", code, out)
	}
	bad := conf
	bad.PodCIDRs = nil
	if out, code := plugin(bad); code != 1 || !strings.Contains(out, "podCIDRs: must have a range") {
		t.Errorf("code %d, %s", code, out)
	}
	stop()
	must(t, <-ended)
	if err := asked(conf); err == nil {
		t.Error("still served")
	}
	if out, code := plugin(conf); code != 0 {
		t.Errorf("nobody serves any longer: %s", out)
	}
}

// TestBegin: commands for one container follow each other, those for others do not wait.
func TestBegin(t *testing.T) {
	s := &server{running: map[string]chan struct{}{}}
	there := make(chan struct{})
	end := s.begin("a", there)
	s.begin("b", there)()
	second := make(chan struct{})
	go func() {
		defer close(second)
		s.begin("a", there)()
	}()
	gone := make(chan struct{})
	close(gone)
	if s.begin("a", gone) != nil {
		t.Fatal("a command of a plugin that is gone begins beside another")
	}
	select {
	case <-second:
		t.Fatal("two commands for one container at once")
	case <-time.After(20 * time.Millisecond):
	}
	end()
	<-second
	if len(s.running) != 0 {
		t.Errorf("%d are still under way", len(s.running))
	}
}
