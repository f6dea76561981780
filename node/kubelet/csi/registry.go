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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"knarr/internal/csimigration"
	"knarr/internal/inotify"
	"knarr/internal/run"
	"knarr/node/kubelet/volume"
)

// Config is what a Manager works with.
type Config struct {
	// RootDir is the kubelet's root directory.
	RootDir string
	// NodeName is the name of the Node and of its CSINode.
	NodeName string
	// Client reads volumes and writes the CSINode.
	Client kubernetes.Interface
	// Token asks for a token of the pod's service account for an audience, and
	// says when it expires.
	Token func(ctx context.Context, pod *corev1.Pod, audience string, seconds *int64) (token string, expires time.Time, err error)
	// Devices takes plugins of devices, which register in the same directory. Nil: nobody does.
	Devices DevicePlugins
	// Registered is called when a driver has come.
	Registered func()
	// InUseChanged is called when VolumesInUse has changed, for the Node's status
	// to be written.
	InUseChanged func()
	// Did is told of each operation with a volume, Called of each call to a driver.
	// Default: nobody is.
	Did    func(volume.Operation)
	Called func(Call)
	// Cleaned is told that a volume was to be taken away of which nothing could be read
	// that is noted, and what came of it. Default: nobody is.
	Cleaned func(err error)
	// Event tells of a pod or a claim. Nil: nobody is told.
	Event func(about runtime.Object, kind, reason, message string)
}

// DevicePlugins takes plugins by their resource, socket and the versions they speak. drop
// is called when the registration is gone, and says whether the plugin was still the one of
// its resource.
type DevicePlugins interface {
	Adopt(ctx context.Context, resource, endpoint string, versions []string) (drop func() (was bool), err error)
}

// A Manager knows the drivers of the node.
type Manager struct {
	Config
	mu      sync.Mutex
	drivers map[string]*driver       // by name
	locks   map[string]chan struct{} // by handle: who holds the volume, closed when done
	sockets *sockets

	attachments *attachments
	staged      chan struct{}     // a volume stayed on the node that no pod has
	grown       map[string]growth // by driver and handle
}

type driver struct {
	name  string
	conn  *grpc.ClientConn
	node  csipb.NodeClient
	stage bool
	group bool // takes the pod's group itself
	// writers says that it distinguishes one writer of a node from several.
	writers bool
	expand  bool // grows volumes on the node
	stats   bool // says how full volumes are
}

// New returns a Manager that knows no driver yet, but which volumes were in use
// when the one before it ended.
func New(c Config) *Manager {
	if c.Did == nil {
		c.Did = func(volume.Operation) {}
	}
	if c.Called == nil {
		c.Called = func(Call) {}
	}
	if c.Cleaned == nil {
		c.Cleaned = func(error) {}
	}
	m := &Manager{Config: c, drivers: map[string]*driver{}, sockets: newSockets(), locks: map[string]chan struct{}{}, attachments: newAttachments(), staged: make(chan struct{}, 1), grown: map[string]growth{}}
	m.recover()
	return m
}

func (m *Manager) registry() string { return filepath.Join(m.RootDir, "plugins_registry") }

// Run follows the registration directory until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	w, err := inotify.NewWatcher()
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
	m.sockets = newSockets()
	defer m.closeAll()
	defer m.sockets.tasks.Wait()
	var loops run.Group
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops.Loop(ctx, "kubelet: limits of storage drivers", m.followLimits)
	loops.Loop(ctx, "kubelet: volumes left on the node", m.unstageAgain)
	m.follow(ctx, w.Events, w.Errors)
	return nil
}

// follow looks at the directory at each event, when something begun by that has ended, and
// again where it failed.
func (m *Manager) follow(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		case ended := <-m.sockets.ended:
			ended()
		case err := <-errs: // events were lost; a watcher whose errors nobody reads stops
			slog.WarnContext(ctx, "watch for storage drivers, looking at all sockets", "err", err)
		case <-again.C:
		}
		if wait := m.sync(ctx); wait > 0 {
			again.Reset(wait)
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

func dial(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

// register takes up what is behind a registration socket. The directory is that of all
// kinds of plugins.
func (m *Manager) register(ctx context.Context, socket string) (taken, error) {
	conn, err := dial(socket)
	if err != nil {
		return taken{}, err
	}
	defer conn.Close()
	reg := registration.NewRegistrationClient(conn)
	info, err := reg.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return taken{}, err
	}
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = socket
	}
	is := taken{kind: info.Type, name: info.Name}
	switch {
	case info.Type == registration.CSIPlugin:
		var d *driver
		if d, err = m.adopt(ctx, info.Name, endpoint); err == nil {
			is.drop = func() bool { return m.drop(d) }
		}
	case info.Type == registration.DevicePlugin && m.Devices != nil:
		is.drop, err = m.Devices.Adopt(ctx, info.Name, endpoint, info.SupportedVersions)
	default:
		return taken{}, nil
	}
	status := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	_, _ = reg.NotifyRegistrationStatus(ctx, status)
	if err == nil && info.Type == registration.CSIPlugin && m.Registered != nil {
		m.Registered()
	}
	return is, err
}

func (m *Manager) adopt(ctx context.Context, name, endpoint string) (*driver, error) {
	conn, err := dial(endpoint, m.telling(name))
	if err != nil {
		return nil, err
	}
	d := &driver{name: name, conn: conn, node: csipb.NewNodeClient(conn)}
	info, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("NodeGetInfo of %s: %w", name, err)
	}
	caps, err := d.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("NodeGetCapabilities of %s: %w", name, err)
	}
	for _, c := range caps.Capabilities {
		switch c.GetRpc().GetType() {
		case csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			d.stage = true
		case csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			d.group = true
		case csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			d.writers = true
		case csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:
			d.expand = true
		case csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS:
			d.stats = true
		}
	}
	if err := m.list(ctx, func() error { return m.show(ctx, d, info) }); err != nil {
		conn.Close()
		return nil, err
	}
	return d, nil
}

// drop forgets a driver, and says whether it was still the one of its name: another that has
// taken its place stays.
func (m *Manager) drop(d *driver) (was bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = d.conn.Close()
	if m.drivers[d.name] != d {
		return false
	}
	delete(m.drivers, d.name)
	return true
}

// list calls f, which changes what drivers there are, here and in the CSINode: one at a
// time, so that both have the same.
func (m *Manager) list(ctx context.Context, f func() error) error {
	select {
	case m.sockets.listing <- struct{}{}:
		defer func() { <-m.sockets.listing }()
		return f()
	case <-ctx.Done():
		return ctx.Err()
	}
}

const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// show writes the driver into the CSINode and the Node, and makes it the one of its name.
func (m *Manager) show(ctx context.Context, d *driver, info *csipb.NodeGetInfoResponse) error {
	node, err := m.Client.CoreV1().Nodes().Get(ctx, m.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	patch, err := nodePatch(node.Annotations[nodeIDAnnotation], d.name, info)
	if err != nil {
		return err
	}
	if _, err := m.Client.CoreV1().Nodes().Patch(ctx, m.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := m.change(ctx, node, func(all []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(without(all, d.name), entryOf(d.name, info))
	}); err != nil {
		return err
	}
	m.mu.Lock()
	old := m.drivers[d.name]
	m.drivers[d.name] = d
	m.mu.Unlock()
	if old != nil {
		_ = old.conn.Close()
	}
	return nil
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

// hide takes a driver out of the CSINode, unless it has come back.
func (m *Manager) hide(ctx context.Context, name string) error {
	if _, err := m.driver(name); err == nil {
		return nil
	}
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
				ObjectMeta: metav1.ObjectMeta{Name: m.NodeName, Annotations: map[string]string{csimigration.Annotation: csimigration.Plugins}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
				Spec:       storagev1.CSINodeSpec{Drivers: f(nil)},
			}, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		have = have.DeepCopy()
		metav1.SetMetaDataAnnotation(&have.ObjectMeta, csimigration.Annotation, csimigration.Plugins)
		have.Spec.Drivers = f(have.Spec.Drivers)
		_, err = api.Update(ctx, have, metav1.UpdateOptions{})
		return err
	})
}
