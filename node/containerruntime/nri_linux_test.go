package containerruntime

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// adjuster gives each container a variable, as a plugin of the node resource interface may, and
// notes what it hears of.
type adjuster struct{ had, started chan string }

func (a *adjuster) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	for _, p := range pods {
		a.had <- p.Name
	}
	return nil, nil
}

func (a *adjuster) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("ADJUSTED", "yes")
	return adjust, nil, nil
}

func (a *adjuster) StartContainer(_ context.Context, p *api.PodSandbox, _ *api.Container) error {
	a.started <- p.Name
	return nil
}

// A plugin of the node resource interface hears of the pods there are and of those to come, and
// changes their containers; without it they are as before.
func TestNRI(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	const script = "while ! [ -e /tmp/end ]; do sleep 0.1; done"
	n.shell(t, "before", script)
	a := &adjuster{make(chan string, 9), make(chan string, 9)}
	plugin, err := stub.New(a, stub.WithPluginName("adjuster"), stub.WithPluginIdx("10"), stub.WithSocketPath(n.config.withDefaultsForTest(t).ownNRISocket()))
	if err != nil {
		t.Fatal(err)
	}
	if err := plugin.Start(ctx); err != nil {
		t.Fatal(err)
	}
	hears := func(of chan string, want string) {
		t.Helper()
		select {
		case got := <-of:
			if got != want {
				t.Errorf("it hears of %s, not of %s", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("it hears nothing of %s", want)
		}
	}
	adjusted := func(container string) bool {
		t.Helper()
		res, err := n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: container, Cmd: []string{"/bin/busybox", "env"}, Timeout: 20})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(res.Stdout), "ADJUSTED=yes")
	}
	hears(a.had, "before")
	_, container := n.shell(t, "with", script)
	hears(a.started, "with")
	if !adjusted(container) {
		t.Error("what it adds is not there")
	}
	plugin.Stop()
	if _, container := n.shell(t, "after", script); adjusted(container) {
		t.Error("what it adds is there without it")
	}
	dir, err := os.Stat(filepath.Dir(n.config.withDefaultsForTest(t).ownNRISocket()))
	if err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("others than root reach it: %v, %v", dir, err)
	}
}

// The customary socket is taken where it is free or was left, and not from another runtime; it
// goes with the node.
func TestNRISocket(t *testing.T) {
	dir := t.TempDir()
	c := Config{State: filepath.Join(dir, "state"), NRISocket: filepath.Join(dir, "nri", "nri.sock")}
	if got := c.nri(c.nriTaken()); got["socket_path"] != c.NRISocket || got["plugin_path"] != nil {
		t.Error(got)
	}
	if err := os.Mkdir(filepath.Dir(c.NRISocket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.NRISocket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.nri(c.nriTaken()); got["socket_path"] != c.ownNRISocket() || !strings.HasPrefix(got["plugin_path"].(string), c.State) {
		t.Error(got)
	}
	for until := time.Now().Add(20 * time.Second); ; { // it takes no connection, and soon has no room for one more
		conn, err := net.DialTimeout("unix", c.NRISocket, time.Second)
		if err != nil {
			break
		}
		defer conn.Close()
		if time.Now().After(until) {
			t.Fatal("it has room for all")
		}
	}
	if !c.nriTaken() {
		t.Error("a socket of which nobody takes a connection is taken for free")
	}
	c.removeNRI()
	if _, err := os.Stat(c.NRISocket); err != nil {
		t.Error("another runtime's socket is removed")
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if got := c.nri(c.nriTaken()); got["socket_path"] != c.NRISocket {
		t.Error(got)
	}
	c.removeNRI()
	if _, err := os.Stat(filepath.Dir(c.NRISocket)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it stays: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(c.NRISocket), 0o700); err != nil { // as one that ended by itself leaves it
		t.Fatal(err)
	}
	c.removeNRI()
	if _, err := os.Stat(filepath.Dir(c.NRISocket)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory stays: %v", err)
	}
	c.NRISocket = ""
	if got := c.nri(c.nriTaken()); got["socket_path"] != c.ownNRISocket() {
		t.Error(got)
	}
}
