package csi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// logged is what is logged during the test.
func logged(t *testing.T) *bytes.Buffer {
	var b bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	t.Cleanup(func() { slog.SetDefault(was) })
	return &b
}

// settle has a Manager look at its directory, and waits for all that this begins.
func settle(t *testing.T, m *Manager) (again time.Duration) {
	t.Helper()
	underway := func(attempts map[string]*attempt) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(attempts)), func(a *attempt) bool { return a.underway })
	}
	for {
		again = m.sync(t.Context())
		if !underway(m.sockets.attempts) && !underway(m.sockets.gone) {
			return again
		}
		(<-m.sockets.ended)()
	}
}

// TestDeadSocket: a socket that nobody listens at is logged once, and tried ever
// more rarely.
func TestDeadSocket(t *testing.T) {
	text := logged(t)
	m := New(Config{RootDir: t.TempDir(), NodeName: "n"})
	if err := os.MkdirAll(m.registry(), 0o750); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(m.registry(), "d")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		again := settle(t, m)
		a := m.sockets.attempts[path]
		if a == nil || a.wait != want*time.Second || again <= 0 || again > a.wait {
			t.Fatalf("again in %v, %+v, want %d s", again, a, want)
		}
		settle(t, m)
		if a.wait != want*time.Second {
			t.Fatalf("tried again at once: %+v", a)
		}
		a.at = time.Time{}
	}
	if n := strings.Count(text.String(), "if it is gone, remove the socket"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, text)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if again := settle(t, m); again != 0 || len(m.sockets.attempts) != 0 {
		t.Errorf("after the socket: again in %v, %v", again, m.sockets.attempts)
	}
}

// A nodeAPI has a Node and its CSINode, unless it is away.
type nodeAPI struct {
	away    bool
	csiNode *storagev1.CSINode
}

func newNodeAPI() *nodeAPI {
	return &nodeAPI{csiNode: &storagev1.CSINode{TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSINode"}, ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
}

// manager is one of the node, whose registration directory is there.
func (a *nodeAPI) manager(t *testing.T, registered func()) *Manager {
	t.Helper()
	config := &rest.Config{Host: "http://api", Transport: a}
	config.ContentType = runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{RootDir: t.TempDir(), NodeName: "n", Client: client, Registered: registered})
	if err := os.MkdirAll(m.registry(), 0o750); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.closeAll)
	return m
}

func (a *nodeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.away {
		return nil, errors.New("the API server is away")
	}
	var o runtime.Object = a.csiNode
	if strings.Contains(r.URL.Path, "/nodes/") {
		o = &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	} else if r.Method == http.MethodPut {
		a.csiNode.Spec.Drivers = nil
		if err := json.NewDecoder(r.Body).Decode(a.csiNode); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(o)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, err
}

// TestGoneDriverIsHidden: a driver that left while the API server was away leaves
// the CSINode after.
func TestGoneDriverIsHidden(t *testing.T) {
	logged(t)
	api := newNodeAPI()
	api.away = true
	api.csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "d"}, {Name: "e"}}
	m := api.manager(t, nil)
	m.sockets.taken[filepath.Join(m.registry(), "d")] = taken{file: socketFile{inode: 1}, kind: registration.CSIPlugin, name: "d", drop: func() bool { return true }}
	gone := m.sockets.gone
	if again := settle(t, m); again == 0 || gone["d"] == nil {
		t.Fatalf("again in %v, gone %v", again, gone)
	}
	api.away, gone["d"].at = false, time.Time{}
	if again := settle(t, m); again != 0 || len(gone) != 0 {
		t.Errorf("again in %v, gone %+v", again, gone["d"])
	}
	if all := api.csiNode.Spec.Drivers; len(all) != 1 || all[0].Name != "e" {
		t.Errorf("the CSINode has %v", all)
	}
}

// TestLostEvents: what the watcher says of events that it lost is read, else it
// would wait for that and never say anything again.
func TestLostEvents(t *testing.T) {
	text := logged(t)
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{RootDir: t.TempDir(), NodeName: "n"})
		if err := os.MkdirAll(m.registry(), 0o750); err != nil {
			t.Fatal(err)
		}
		errs, ended := make(chan error), make(chan struct{})
		go func() {
			defer close(ended)
			m.follow(t.Context(), nil, errs)
		}()
		synctest.Wait() // it has looked at the directory
		m.sockets.attempts["lost"] = &attempt{file: socketFile{inode: 1}}
		select {
		case errs <- fsnotify.ErrEventOverflow:
		case <-time.After(time.Minute):
			t.Fatal("nobody reads")
		}
		synctest.Wait()
		if len(m.sockets.attempts) != 0 {
			t.Error("the directory was not looked at")
		}
	})
	if !strings.Contains(text.String(), fsnotify.ErrEventOverflow.Error()) {
		t.Errorf("logged: %s", text)
	}
}
