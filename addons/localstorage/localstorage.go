// Package localstorage gives claims volumes on the disk of their pod's node. It
// reads PersistentVolumeClaims, PersistentVolumes, StorageClasses, volume
// snapshots and its own Node, and writes PersistentVolumes, the status of claims and the annotation
// that says which node has one, CSIStorageCapacities, events, and the volumes' data below one directory. The
// publisher, which runs on servers, writes the StorageClass, the CSIDriver, the
// roles and the admission policy; it reads Nodes, and writes the annotation and events of
// claims and volumes whose node is gone.
//
// Every node provisions for itself: the claims whose pod the scheduler has given
// to it. So no leader is needed, and a node that is away holds up nobody else's.
package localstorage

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	watchtools "k8s.io/client-go/tools/watch"

	"knarr/addons/localstorage/disk"
	"knarr/addons/localstorage/driver"
	"knarr/internal/localpath"
	"knarr/internal/run"
)

const (
	// Provisioner is that of the class that is made here.
	Provisioner = driver.Name
	// ClassName is that of the default class.
	ClassName = "local-path"
	// Namespace has the capacities of nodes.
	Namespace = "kube-system"
)

// Group has the provisioners of nodes.
const Group = localpath.Group

// User is whom the provisioner of a node is.
func User(node string) string { return localpath.UserPrefix + node }

// Config is what a Node needs.
type Config struct {
	// Kube reaches the API server as User(NodeName).
	Kube *rest.Config
	// NodeName is the name of this node.
	NodeName string
	// Dir is where volumes are kept.
	Dir string
	// KubeletDir is the kubelet's root directory.
	KubeletDir string
	// Version is the program's.
	Version string
}

// A Node provisions and serves the volumes of one node.
type Node struct {
	cfg    Config
	client kubernetes.Interface
}

// New puts it together; it starts nothing.
func New(c Config) (*Node, error) {
	client, err := kubernetes.NewForConfig(c.Kube)
	if err != nil {
		return nil, fmt.Errorf("local storage: %w", err)
	}
	return &Node{cfg: c, client: client}, nil
}

// HasVolumes says whether there are volumes in a storage directory.
func HasVolumes(dir string) (bool, error) { return disk.HasVolumes(dir) }

// ReleaseDevices takes the loop devices of a storage directory off the node, for a
// cluster that is taken down.
func ReleaseDevices(dir string) error { return disk.Release(dir) }

// socket is where the driver answers, as others' do.
func (n *Node) socket() string {
	return filepath.Join(n.cfg.KubeletDir, "plugins", driver.Name, "csi.sock")
}

func (n *Node) registrySocket() string {
	return filepath.Join(n.cfg.KubeletDir, "plugins_registry", driver.Name+"-reg.sock")
}

// Run serves and provisions until ctx ends. Volumes stay mounted.
func (n *Node) Run(ctx context.Context) error {
	me, err := n.node(ctx)
	if me == nil {
		return err
	}
	store, err := disk.Open(ctx, n.cfg.Dir)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("local storage: %w", err)
	}
	defer store.Close()
	d := &driver.Driver{
		Store: store, NodeID: n.cfg.NodeName, Version: n.cfg.Version, Endpoint: n.socket(),
		Topology: map[string]string{corev1.LabelHostname: me.Labels[corev1.LabelHostname]},
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg run.Group
	defer wg.Wait()
	defer cancel()
	serving := make(chan struct{})
	failed := make(chan error, 2)
	wg.Go("local storage: driver", func() {
		failed <- run.Catch("local storage: driver", func() error { return d.Serve(ctx, n.registrySocket(), func() { close(serving) }) })
	})
	select {
	case <-serving:
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
	conn, err := grpc.NewClient("unix://"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("local storage: %w", err)
	}
	defer conn.Close()
	wg.Go("local storage: provision", func() {
		failed <- run.Catch("local storage: provision", func() error { return n.provision(ctx, me, store, csipb.NewControllerClient(conn)) })
	})
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// rights waits until the API server lets us read our Node: in a cluster's first
// second the roles are still being made, and a watch before that is an error in
// the log. No event says so. After half a minute the watch says what is missing.
func (n *Node) rights(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := n.client.CoreV1().Nodes().Get(ctx, n.cfg.NodeName, metav1.GetOptions{})
		return !apierrors.IsForbidden(err), nil
	})
	if ctx.Err() != nil || wait.Interrupted(err) {
		return nil
	}
	return err
}

// node waits for this node's Node, whose label says where its volumes are; nil when
// ctx ended.
func (n *Node) node(ctx context.Context) (*corev1.Node, error) {
	if err := n.rights(ctx); err != nil {
		return nil, err
	}
	lw := cache.NewListWatchFromClient(n.client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.OneTermEqualSelector("metadata.name", n.cfg.NodeName))
	ev, err := watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		node, is := e.Object.(*corev1.Node)
		return is && node.Labels[corev1.LabelHostname] != "", nil
	})
	if ctx.Err() != nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("wait for node %s: %w", n.cfg.NodeName, err)
	}
	return ev.Object.(*corev1.Node), nil
}

// provision runs the loops on the objects of the API.
func (n *Node) provision(ctx context.Context, me *corev1.Node, store *disk.Store, calls csipb.ControllerClient) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: n.client.CoreV1().Events("")})
	f := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTransform(withoutManagers))
	own := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithNamespace(Namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = capacityLabel + "=" + hash(n.cfg.NodeName)
	}))
	p := &provisioner{
		client: n.client, calls: calls, store: store, node: me, changed: make(chan struct{}, 1),
		claims: f.Core().V1().PersistentVolumeClaims().Informer(), volumes: f.Core().V1().PersistentVolumes().Informer(),
		classes: f.Storage().V1().StorageClasses().Informer(), capacities: own.Storage().V1().CSIStorageCapacities().Informer(),
		events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: driver.Name + "_" + n.cfg.NodeName}),
	}
	return runLoops(ctx, p.controllers(), f, own)
}

// runLoops runs loops by their names, with what they read from, until ctx ends or one of them
// does.
func runLoops(ctx context.Context, loops map[string]func(context.Context) error, from ...informers.SharedInformerFactory) error {
	ctx, cancel := context.WithCancel(ctx)
	for _, f := range from {
		f.StartWithContext(ctx)
	}
	failed := make(chan error, len(loops))
	var wg run.Group
	defer func() {
		cancel()
		wg.Wait()
		for _, f := range from {
			f.Shutdown()
		}
	}()
	for name, loop := range loops {
		wg.Go(name, func() { failed <- run.Catch(name, func() error { return loop(ctx) }) })
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// withoutManagers leaves out who wrote which field: half an object's size.
func withoutManagers(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

const (
	// callTime bounds a call of the driver, and copyTime one that copies data.
	callTime = 2 * time.Minute
	copyTime = time.Hour
)
