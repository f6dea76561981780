// Package csi lets storage drivers serve volumes on this node. It finds the
// drivers' sockets in the registration directory, shows them in the CSINode
// and the Node, and asks them to stage and publish volumes below the kubelet's
// root directory, where it notes what it has published.
package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Config is what a Manager works with.
type Config struct {
	// RootDir is the kubelet's root directory.
	RootDir string
	// NodeName is the name of the Node and of its CSINode.
	NodeName string
	// Client reads volumes and writes the CSINode.
	Client kubernetes.Interface
	// Token asks for a token of the pod's service account for an audience.
	Token func(ctx context.Context, pod *corev1.Pod, audience string, seconds *int64) (string, time.Time, error)
	// Registered is called when a driver has come.
	Registered func()
}

// A Manager knows the drivers of the node.
type Manager struct {
	Config
	mu      sync.Mutex
	drivers map[string]*driver // by name
	sockets map[string]string  // registration socket to driver name
	locks   [64]sync.Mutex     // by hash of the volume's handle
}

type driver struct {
	name  string
	conn  *grpc.ClientConn
	node  csipb.NodeClient
	stage bool
	group bool // takes the pod's group itself
}

// New returns a Manager that knows no driver yet.
func New(c Config) *Manager {
	return &Manager{Config: c, drivers: map[string]*driver{}, sockets: map[string]string{}}
}

func (m *Manager) registry() string { return filepath.Join(m.RootDir, "plugins_registry") }

// Run follows the registration directory until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for drivers: %w", err)
	}
	defer w.Close()
	if err := os.MkdirAll(m.registry(), 0o750); err != nil {
		return fmt.Errorf("watch for drivers: %w", err)
	}
	if err := w.Add(m.registry()); err != nil {
		return fmt.Errorf("watch for drivers: %w", err)
	}
	defer m.closeAll()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
		case <-retry.C:
		}
		if !m.sync(ctx) {
			retry.Reset(2 * time.Second)
		}
	}
}

func (m *Manager) closeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.drivers {
		_ = d.conn.Close()
	}
	clear(m.drivers)
}

// sync registers new sockets and forgets those gone; false: try again soon.
func (m *Manager) sync(ctx context.Context) (ok bool) {
	ok = true
	entries, err := os.ReadDir(m.registry())
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		path := filepath.Join(m.registry(), e.Name())
		seen[path] = true
		if _, known := m.sockets[path]; known {
			continue
		}
		name, err := m.register(ctx, path)
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("register storage driver", "socket", path, "err", err)
			}
			ok = false
			continue
		}
		m.sockets[path] = name
	}
	for path, name := range m.sockets {
		if seen[path] {
			continue
		}
		delete(m.sockets, path)
		if name == "" {
			continue
		}
		m.mu.Lock()
		if d := m.drivers[name]; d != nil {
			_ = d.conn.Close()
			delete(m.drivers, name)
		}
		m.mu.Unlock()
		if err := m.hide(ctx, name); err != nil && ctx.Err() == nil {
			slog.Warn("unregister storage driver", "driver", name, "err", err)
		}
	}
	return ok
}

func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// register takes up the driver behind a registration socket; "" if it is a
// plugin of another kind.
func (m *Manager) register(ctx context.Context, socket string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	reg := registration.NewRegistrationClient(conn)
	info, err := reg.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return "", err
	}
	if info.Type != registration.CSIPlugin {
		return "", nil
	}
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = socket
	}
	err = m.adopt(ctx, info.Name, endpoint)
	status := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	_, _ = reg.NotifyRegistrationStatus(ctx, status)
	if err == nil && m.Registered != nil {
		m.Registered()
	}
	return info.Name, err
}

func (m *Manager) adopt(ctx context.Context, name, endpoint string) error {
	conn, err := dial(endpoint)
	if err != nil {
		return err
	}
	d := &driver{name: name, conn: conn, node: csipb.NewNodeClient(conn)}
	info, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		conn.Close()
		return fmt.Errorf("NodeGetInfo of %s: %w", name, err)
	}
	caps, err := d.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		conn.Close()
		return fmt.Errorf("NodeGetCapabilities of %s: %w", name, err)
	}
	for _, c := range caps.Capabilities {
		switch c.GetRpc().GetType() {
		case csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			d.stage = true
		case csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			d.group = true
		}
	}
	if err := m.show(ctx, name, info); err != nil {
		conn.Close()
		return err
	}
	m.mu.Lock()
	old := m.drivers[name]
	m.drivers[name] = d
	m.mu.Unlock()
	if old != nil {
		_ = old.conn.Close()
	}
	return nil
}

const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// show writes the driver into the CSINode and the Node.
func (m *Manager) show(ctx context.Context, name string, info *csipb.NodeGetInfoResponse) error {
	node, err := m.Client.CoreV1().Nodes().Get(ctx, m.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	patch, err := nodePatch(node.Annotations[nodeIDAnnotation], name, info)
	if err != nil {
		return err
	}
	if _, err := m.Client.CoreV1().Nodes().Patch(ctx, m.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return m.change(ctx, node, func(all []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(without(all, name), entryOf(name, info))
	})
}

// entryOf is how a driver is shown in the CSINode, after what it says. Pure.
func entryOf(name string, info *csipb.NodeGetInfoResponse) storagev1.CSINodeDriver {
	entry := storagev1.CSINodeDriver{Name: name, NodeID: info.NodeId}
	for k := range info.GetAccessibleTopology().GetSegments() {
		entry.TopologyKeys = append(entry.TopologyKeys, k)
	}
	slices.Sort(entry.TopologyKeys)
	if info.MaxVolumesPerNode > 0 {
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(info.MaxVolumesPerNode, 1<<31-1)))}
	}
	return entry
}

// nodePatch adds a driver to the Node: its ID to those noted before, and where
// its volumes can be reached as labels. Pure.
func nodePatch(noted, name string, info *csipb.NodeGetInfoResponse) ([]byte, error) {
	ids := map[string]string{}
	_ = json.Unmarshal([]byte(noted), &ids)
	if ids == nil { // it was null
		ids = map[string]string{}
	}
	ids[name] = info.NodeId
	b, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	meta := map[string]any{"annotations": map[string]string{nodeIDAnnotation: string(b)}}
	if segments := info.GetAccessibleTopology().GetSegments(); len(segments) > 0 {
		meta["labels"] = segments
	}
	return json.Marshal(map[string]any{"metadata": meta})
}

func (m *Manager) hide(ctx context.Context, name string) error {
	node, err := m.Client.CoreV1().Nodes().Get(ctx, m.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return m.change(ctx, node, func(all []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return without(all, name) })
}

func without(all []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(all), func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// change updates the CSINode's drivers, creating it if it is missing.
func (m *Manager) change(ctx context.Context, node *corev1.Node, f func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver) error {
	api := m.Client.StorageV1().CSINodes()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		have, err := api.Get(ctx, m.NodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = api.Create(ctx, &storagev1.CSINode{
				ObjectMeta: metav1.ObjectMeta{Name: m.NodeName, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
				Spec:       storagev1.CSINodeSpec{Drivers: f(nil)},
			}, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		have = have.DeepCopy()
		have.Spec.Drivers = f(have.Spec.Drivers)
		_, err = api.Update(ctx, have, metav1.UpdateOptions{})
		return err
	})
}
