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
	"maps"
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

// DevicePlugins takes plugins by their resource, socket and the versions they speak, and
// drops those whose registration is gone.
type DevicePlugins interface {
	Adopt(ctx context.Context, resource, endpoint string, versions []string) error
	Drop(resource string)
}

// A Manager knows the drivers of the node.
type Manager struct {
	Config
	mu      sync.Mutex
	drivers map[string]*driver       // by name
	sockets map[string]string        // registration socket to driver name
	devices map[string]string        // registration socket to the resource of a device plugin
	failed  map[string]*attempt      // by registration socket: drivers not registered
	gone    map[string]*attempt      // by name: drivers the CSINode may still have
	locks   map[string]chan struct{} // by handle: who holds the volume, closed when done

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
	m := &Manager{Config: c, drivers: map[string]*driver{}, sockets: map[string]string{}, devices: map[string]string{}, failed: map[string]*attempt{}, gone: map[string]*attempt{}, locks: map[string]chan struct{}{}, attachments: newAttachments(), staged: make(chan struct{}, 1), grown: map[string]growth{}}
	m.recover()
	return m
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
	var loops run.Group
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops.Loop(ctx, "kubelet: limits of storage drivers", m.followLimits)
	loops.Loop(ctx, "kubelet: volumes left on the node", m.unstageAgain)
	m.follow(ctx, w.Events, w.Errors)
	return nil
}

// follow looks at the directory at each event, and again where something failed.
func (m *Manager) follow(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if e.Has(fsnotify.Create) {
				delete(m.failed, e.Name) // this is another socket
			}
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

// The times between two tries to register a driver, or to unregister it.
const minRetry, maxRetry = 2 * time.Second, time.Minute

// An attempt is one that failed, until the next one.
type attempt struct {
	err  string
	wait time.Duration
	at   time.Time
}

// fail notes an error, and says whether it is another one than before.
func (a *attempt) fail(err error) (other bool) {
	other = a.err != err.Error()
	a.err, a.wait = err.Error(), min(max(2*a.wait, minRetry), maxRetry)
	a.at = time.Now().Add(a.wait)
	return other
}

// wait is how long until the first of the attempts is made; 0: there is none.
func wait(all ...map[string]*attempt) (least time.Duration) {
	for _, attempts := range all {
		for _, a := range attempts {
			if left := max(time.Until(a.at), time.Millisecond); least == 0 || left < least {
				least = left
			}
		}
	}
	return least
}

// sync registers new sockets and forgets those gone. What failed is to be tried
// again after a while; 0: nothing did.
func (m *Manager) sync(ctx context.Context) (again time.Duration) {
	entries, err := os.ReadDir(m.registry())
	if err != nil {
		return minRetry
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		path := filepath.Join(m.registry(), e.Name())
		seen[path] = true
		if _, known := m.sockets[path]; !known {
			m.take(ctx, path)
		}
	}
	maps.DeleteFunc(m.failed, func(path string, _ *attempt) bool { return !seen[path] })
	for path, name := range m.sockets {
		if seen[path] {
			continue
		}
		delete(m.sockets, path)
		if resource, ok := m.devices[path]; ok {
			delete(m.devices, path)
			m.Devices.Drop(resource)
		}
		if name == "" {
			continue
		}
		m.mu.Lock()
		if d := m.drivers[name]; d != nil {
			_ = d.conn.Close()
			delete(m.drivers, name)
		}
		m.mu.Unlock()
		m.gone[name] = &attempt{}
	}
	m.hideGone(ctx)
	return wait(m.failed, m.gone)
}

// take registers the driver of a socket, unless that failed a short while ago.
func (m *Manager) take(ctx context.Context, path string) {
	a := m.failed[path]
	if a != nil && time.Now().Before(a.at) {
		return
	}
	name, err := m.register(ctx, path)
	if err == nil {
		m.sockets[path] = name
		delete(m.failed, path)
		delete(m.gone, name) // it has come back
		return
	}
	if a == nil {
		a = &attempt{}
		m.failed[path] = a
	}
	if a.fail(err) && ctx.Err() == nil {
		slog.WarnContext(ctx, "register plugin, trying again; if it is gone, remove the socket", "socket", path, "err", err)
	}
}

// hideGone takes drivers that are gone out of the CSINode.
func (m *Manager) hideGone(ctx context.Context) {
	for name, a := range m.gone {
		if time.Now().Before(a.at) {
			continue
		}
		err := m.hide(ctx, name)
		if err == nil {
			delete(m.gone, name)
			continue
		}
		if a.fail(err) && ctx.Err() == nil {
			slog.WarnContext(ctx, "unregister storage driver, trying again", "driver", name, "err", err)
		}
	}
}

func dial(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

// register takes up what is behind a registration socket, and gives its name if it is a
// storage driver. The directory is that of all kinds of plugins.
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
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = socket
	}
	name := ""
	switch {
	case info.Type == registration.CSIPlugin:
		name, err = info.Name, m.adopt(ctx, info.Name, endpoint)
	case info.Type == registration.DevicePlugin && m.Devices != nil:
		if err = m.Devices.Adopt(ctx, info.Name, endpoint, info.SupportedVersions); err == nil {
			m.devices[socket] = info.Name
		}
	default:
		return "", nil
	}
	status := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	_, _ = reg.NotifyRegistrationStatus(ctx, status)
	if err == nil && name != "" && m.Registered != nil {
		m.Registered()
	}
	return name, err
}

func (m *Manager) adopt(ctx context.Context, name, endpoint string) error {
	conn, err := dial(endpoint, m.telling(name))
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
		case csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			d.writers = true
		case csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:
			d.expand = true
		case csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS:
			d.stats = true
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
