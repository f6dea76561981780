// Package kubelet runs the pods that are bound to this node. It reads Pods,
// Services, configMaps, secrets, claims and its own Node, and writes the Node,
// its Lease and CSINode, pod status, the status of claims that grow, mirror Pods of
// static pods, events and, at the end, the deletion of pods. On the
// machine it drives a container runtime over CRI and writes below its root
// directory, the pod log directory and its part of the cgroup tree.
package kubelet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/features"
	"knarr/internal/healthz"
	"knarr/internal/informer"
	"knarr/internal/logonce"
	"knarr/internal/run"
	"knarr/node/kubelet/allocation"
	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/cpumanager"
	"knarr/node/kubelet/credentialprovider"
	"knarr/node/kubelet/csi"
	"knarr/node/kubelet/deviceplugin"
	"knarr/node/kubelet/fscall"
	"knarr/node/kubelet/memorymanager"
	"knarr/node/kubelet/nodeallocatable"
	"knarr/node/kubelet/objects"
	"knarr/node/kubelet/podcertificate"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/prober"
	"knarr/node/kubelet/pullrecords"
	"knarr/node/kubelet/runtimestate"
	"knarr/node/kubelet/tracing"
	"knarr/node/kubelet/userns"
	"knarr/node/kubelet/volume"
)

// Config is what a kubelet is made of.
type Config struct {
	// Kube leads to the API server under the node's identity. Required.
	Kube *rest.Config
	// Runtime is the connection to the container runtime; its owner closes
	// it. Required unless RuntimeEndpoint is set.
	Runtime *grpc.ClientConn
	// RuntimeEndpoint is the runtime's socket, such as
	// unix:///run/containerd/containerd.sock, if Runtime is nil.
	RuntimeEndpoint string
	// RuntimeMetrics are shown beside the kubelet's own. Default: none.
	RuntimeMetrics []prometheus.Collector
	// ImageEndpoint is the socket of images, where it is not the runtime's. Default: the runtime
	// serves them.
	ImageEndpoint string
	// NetworkErr says what is wrong with the node's network beside what the
	// runtime says of it; nil: nothing is known to be. While something is, the
	// node is not ready. Default: no opinion.
	NetworkErr func() error
	// NetworkStale says what of the node's network is not brought up to date, while what was
	// there before works: new pods are to go elsewhere. Nil: nothing.
	NetworkStale func() error
	// CheckStatic says why a pod of a manifest is not to run; nil: nothing is asked.
	CheckStatic func(*corev1.Pod) error
	// LeaveServer goes on with another API server than the one that does not answer; nil:
	// there is no other.
	LeaveServer func()
	// ImagesChanged receives when images of the runtime came or went. Default: while
	// a pod waits for an image, the runtime is asked for it every two seconds.
	ImagesChanged <-chan struct{}
	// PullProgress says how many bytes are there of an image that is being pulled, and of
	// how many, where the runtime tells. Default: nobody knows.
	PullProgress func(ctx context.Context, image string) (done, total int64, ok bool)
	// ShareImages answers other nodes that want this node's images; public says whether
	// everybody may have one. Default: nobody gets any.
	ShareImages func(public func(image, id string) bool) http.Handler
	// PullFromPeers pulls an image that everybody may have from other nodes, where its
	// registry does not answer. Default: it is not had then.
	PullFromPeers func(ctx context.Context, image string) error
	// NodeName is the name of the Node. Default: the host name, lower case.
	NodeName string
	// Hostname is the node's host name. Default: NodeName.
	Hostname string
	// NodeIPs are the node's addresses, at most one of each family, the
	// primary first. Default: the address of the default route.
	NodeIPs []net.IP
	// ExternalIPs are addresses the node has outside.
	ExternalIPs []net.IP
	// RootDir holds pods and plugins. Default /var/lib/kubelet.
	RootDir string
	// PodLogsDir is where containers log to. Default /var/log/pods.
	PodLogsDir string
	// ContainerLogsDir gets links to logs for collectors. Default
	// /var/log/containers if PodLogsDir is the default, else none.
	ContainerLogsDir string
	// ClusterDNS are the addresses pods resolve names with.
	ClusterDNS []net.IP
	// ClusterDomain is the domain of cluster names. Default cluster.local.
	ClusterDomain string
	// ResolvConf is the node's resolver configuration. Default
	// /etc/resolv.conf; "-" means none.
	ResolvConf string
	// Listen is the address the kubelet serves on. Default :10250; "-": none.
	Listen string
	// Listener is used instead of listening on Listen, if set.
	Listener net.Listener
	// Healthz is the address that answers /healthz to everybody without TLS; on
	// Listen it is for those that may get nodes/healthz. Default 127.0.0.1:10248,
	// none if Listen is none; "-": none.
	Healthz string
	// ReadOnly is the address that answers everybody what they may read: pods, metrics
	// and statistics. Default "-": none.
	ReadOnly string
	// CertFile and KeyFile are the serving certificate, read again when they
	// change. Default: a self-signed one, kept in memory.
	CertFile, KeyFile string
	// CertDir is where a serving certificate is kept that the API server was asked for,
	// by the setting serverTLSBootstrap. Default: pki below RootDir.
	CertDir string
	// ClientCA authenticates client certificates. Nil: none are accepted.
	ClientCA *x509.CertPool
	// ClientCAFile is the file of those that do, in place of ClientCA, read again when it
	// changes. Default: ClientCA counts.
	ClientCAFile string
	// NodeLabels are put on the Node.
	NodeLabels map[string]string
	// ExternalCloud taints a new node until a cloud controller has initialised it, and
	// leaves its addresses to that one.
	ExternalCloud bool
	// NodeIPsGiven says that somebody has chosen NodeIPs: a cloud controller must find
	// them among the addresses of the instance, and prefers them.
	NodeIPsGiven bool
	// CgroupParent is where pods' groups are, by the names of directories also where
	// systemd makes slices of them. Default /kubepods. "-": the kubelet leaves cgroups to
	// the runtime.
	CgroupParent string
	// Settings are upstream's KubeletConfiguration with defaults for what nobody
	// said; of what is said above too they do not count. Default: configuration.Default.
	Settings *configuration.Settings
	// CredentialProviders is the file of a CredentialProviderConfig, or a directory of
	// such files, and CredentialProviderBinDir where its programs are. Default: none.
	CredentialProviders, CredentialProviderBinDir string
	// Flags are the values of the program's flags, which /flagz shows. Default: there is
	// no such page.
	Flags func() map[string]string
	// SpareProcess sets this process's oom_score_adj; nil: it stays as it is. Not every
	// process that runs a kubelet is one that the machine can do less without than others.
	SpareProcess func(score int) error
	// OpenFiles sets how many files this process may have open; nil: the limit stays as it is.
	OpenFiles func(most int64) error
	// LogLevel sets how much this process logs, as /debug/flags/v asks; nil: nobody can.
	LogLevel func(verbosity int)
	// Version is what the Node says. Default v1.36.3.
	Version string
}

func (c *Config) setDefaults() error {
	var errs []error
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	if c.Kube == nil {
		errs = append(errs, errors.New("Kube is required"))
	}
	if c.Runtime == nil && c.RuntimeEndpoint == "" {
		errs = append(errs, errors.New("Runtime or RuntimeEndpoint is required"))
	}
	if c.NodeName == "" {
		h, err := os.Hostname()
		if err != nil {
			errs = append(errs, err)
		}
		c.NodeName = lower(h)
	}
	def(&c.Hostname, c.NodeName)
	def(&c.RootDir, "/var/lib/kubelet")
	def(&c.CertDir, filepath.Join(c.RootDir, "pki"))
	if c.PodLogsDir == "" {
		c.PodLogsDir = "/var/log/pods"
		def(&c.ContainerLogsDir, "/var/log/containers")
	}
	def(&c.ClusterDomain, "cluster.local")
	def(&c.ResolvConf, "/etc/resolv.conf")
	if c.ResolvConf == "-" {
		c.ResolvConf = ""
	}
	if c.Listener != nil { // what the Node says must be where it listens
		c.Listen = c.Listener.Addr().String()
	}
	def(&c.Listen, ":10250")
	if c.Listen == "-" {
		def(&c.Healthz, "-")
	}
	def(&c.Healthz, "127.0.0.1:10248")
	def(&c.ReadOnly, "-")
	def(&c.CgroupParent, "/kubepods")
	def(&c.Version, "v1.36.3")
	settings := configuration.Settings{}
	if c.Settings != nil {
		settings = *c.Settings.DeepCopy()
	}
	c.Settings = &settings
	configuration.Default(c.Settings)
	if settings.PodPidsLimit == nil { // upstream's default is -1, any number
		settings.PodPidsLimit = new(nodeallocatable.Config{Capacity: pidCapacity(), Settings: c.Settings}.PodPIDs())
	}
	if err := configuration.Validate(c.Settings); err != nil {
		errs = append(errs, err)
	}
	if !*c.Settings.EnableServer && c.Listener == nil {
		c.Listen = "-"
	}
	if !*c.Settings.CgroupsPerQOS {
		c.CgroupParent = "-"
	}
	if len(c.NodeIPs) == 0 {
		ip, err := defaultIP()
		if err != nil {
			errs = append(errs, fmt.Errorf("find the node's address: %w", err))
		}
		c.NodeIPs = []net.IP{ip}
	}
	return errors.Join(errs...)
}

// A Kubelet runs the pods of one node.
type Kubelet struct {
	cfg         Config
	client      kubernetes.Interface
	kube        *rest.Config // with which client was made
	ownConn     bool
	runtime     cri.RuntimeServiceClient
	images      cri.ImageServiceClient
	runtimeInfo atomic.Pointer[cri.VersionResponse]
	tracer      *tracing.Tracer // nil: no spans are sent

	cgroups  *cgroup.Tree
	driver   atomic.Pointer[string] // of control groups: as it is set, then as the runtime says
	machine  machine
	oomFloor int64

	events          record.EventRecorder
	news            logonce.Filter // of what fails again and again
	heartbeat       time.Duration  // heartbeatTimeout, but in tests
	services        corelisters.ServiceLister
	serviceInformer cache.SharedIndexInformer
	objects         *objects.Store
	volumes         *volume.Manager
	drivers         *csi.Manager
	devices         *deviceplugin.Manager
	cpus            *cpumanager.Manager
	memory          *memorymanager.Manager
	users           *userns.Manager
	alignment       alignment
	certificates    *podcertificate.Manager
	clientCA        atomic.Pointer[x509.CertPool] // nil: no client certificate is accepted
	shuttingDown    atomic.Bool
	// hugepages: the Node shows none of sizes that the machine does not have any more.
	hugepages atomic.Bool
	// unschedulable and rebooted are what events told of the Node.
	unschedulable, rebooted atomic.Bool
	// busAddress and logindDir are of D-Bus and logind; "": those of the system.
	busAddress, logindDir string
	sysDir                string // where the kernel tells of CPUs and NUMA nodes
	appArmor              bool   // the kernel enforces its profiles
	readMachine           func() (machine, error)
	prober                *prober.Manager
	pulls                 *pullGate
	records               *pullrecords.Store
	nodeCredentials       nodeCredentials
	plugins               *credentialprovider.Plugins // nil: none
	imageWaits            *imageWaits
	allocations           *allocation.Store
	handlers              atomic.Pointer[[]*cri.RuntimeHandler]
	features              atomic.Pointer[cri.RuntimeFeatures]

	network     atomic.Bool
	netMessage  atomic.Pointer[string]
	networkErr  atomic.Pointer[string] // the last answer of NetworkErr
	staleErr    atomic.Pointer[string] // and of NetworkStale
	runtimeErr  atomic.Pointer[string]
	runtimeUp   atomic.Bool
	runtimeSeen time.Time // when the runtime last gave its status; of readRuntime's goroutine
	node        atomic.Pointer[corev1.Node]
	nodeMu      sync.Mutex // held while node is replaced
	pressure    atomic.Pointer[pressure]
	nodeWake    chan struct{}
	nodeNews    chan struct{} // somebody wrote the Node's status
	staticWake  chan struct{}
	imagesWake  chan struct{}
	classWake   chan struct{}
	cpuWake     chan struct{}
	imageList   atomic.Pointer[[]corev1.ContainerImage]
	manifests   atomic.Pointer[[]manifestFile] // of the URL, nil until they were read

	classes   classCache
	imageUse  imageUse
	relisted  atomic.Pointer[time.Time] // when the runtime last listed its pods
	askedList atomic.Pointer[time.Time] // when it was first asked to
	cpuRate   cpuRate
	measured  measurement
	metrics   *metrics
	health    *healthz.Handler
	// pluginsErr is why device plugins cannot register; nil while they can.
	pluginsErr atomic.Pointer[error]
	system     systemGroups
	began      time.Time
	nodeStart  *nodeStart
	sandboxes  sandboxImages
	calls      fscall.Calls
	// statfs says how full disks are; nil: the kernel does.
	statfs  func(path string, into *unix.Statfs_t) error
	storage storageMeter

	mu         sync.Mutex
	ctx        context.Context
	workers    map[types.UID]*worker
	mirrors    map[types.UID]*corev1.Pod
	wg         run.Group
	up         *gate // the runtime has answered that it is ready
	asked      *gate // the runtime was asked at all
	driven     *gate // it is known who makes control groups
	synced     *gate // the pods of the API are known
	static     *gate // the static pods are known
	registered *gate // the Node exists
}

// New checks the configuration and connects nothing.
func New(cfg Config) (*Kubelet, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	kc := rest.CopyConfig(cfg.Kube)
	kc.QPS = -1 // bounded by the number of pods, not by a clock, unless somebody wants one
	if qps := *cfg.Settings.KubeAPIQPS; qps > 0 {
		kc.QPS, kc.Burst = float32(qps), int(cfg.Settings.KubeAPIBurst)
	}
	if kc.UserAgent == "" {
		kc.UserAgent = "kubelet/" + cfg.Version
	}
	if kc.ContentType == "" {
		kc.ContentType = "application/vnd.kubernetes.protobuf"
		kc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	client, err := kubernetes.NewForConfig(kc)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k := &Kubelet{
		cfg: cfg, client: client, kube: kc, cgroups: cgroup.Open(),
		workers: map[types.UID]*worker{}, mirrors: map[types.UID]*corev1.Pod{},
		metrics: newMetrics(cfg.RuntimeMetrics...), heartbeat: heartbeatTimeout,
		began: time.Now(), sysDir: "/sys/devices/system", appArmor: appArmorEnabled(), readMachine: readMachine,
		pulls:      &pullGate{fails: map[pullKey]*pullFail{}},
		imageWaits: newImageWaits(),
		nodeWake:   make(chan struct{}, 1), nodeNews: make(chan struct{}, 1), staticWake: make(chan struct{}, 1), imagesWake: make(chan struct{}, 1), classWake: make(chan struct{}, 1), cpuWake: make(chan struct{}, 1),
		up: newGate(), asked: newGate(), driven: newGate(), synced: newGate(), static: newGate(), registered: newGate(),
	}
	k.driver.Store(&cfg.Settings.CgroupDriver)
	k.health = k.newHealth()
	if features.Set(cfg.Settings.FeatureGates).Enabled("MemoryQoS") {
		k.metrics.registry.MustRegister(k.metrics.memoryMin, k.metrics.memoryLow)
	}
	k.nodeStart = newNodeStart(k.metrics.registry, bootTime(), k.began)
	if err := k.newCredentialProviders(); err != nil {
		return nil, fmt.Errorf("kubelet: register credential provider plugins: %w", err)
	}
	k.clientCA.Store(cfg.ClientCA)
	if cfg.ClientCAFile != "" {
		if err := k.readClientCA(); err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
	}
	k.pulls.limit(cfg.Settings)
	k.pressure.Store(&pressure{})
	k.oomFloor = oomFloor()
	return k, nil
}

// Name is the component's name.
func (k *Kubelet) Name() string { return "kubelet" }

// Run runs the node's pods until ctx ends. Containers keep running when it
// returns; the next Run finds them again.
func (k *Kubelet) Run(ctx context.Context) error {
	k.spareProcess()
	k.openFiles()
	closeRuntime, err := k.useRuntime()
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	defer closeRuntime()
	if k.machine, err = k.readMachine(); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	for _, dir := range []string{k.cfg.RootDir, filepath.Join(k.cfg.RootDir, "pods"), filepath.Join(k.cfg.RootDir, "plugins"),
		filepath.Join(k.cfg.RootDir, "plugins_registry"), k.cfg.PodLogsDir, k.cfg.ContainerLogsDir} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
	}
	if err := k.checkHost(); err != nil { // how large the disk is, too
		return fmt.Errorf("kubelet: %w", err)
	}
	if err := k.takeUp(); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if err := shareMounts(filepath.Join(k.cfg.RootDir, "pods")); err != nil {
		slog.Warn("mount propagation from containers is not available", "err", err)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.ctx = ctx
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	k.events = truncatedEvents{broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: k.cfg.NodeName}), &k.news}
	sink, err := k.eventSink()
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	broadcaster.StartRecordingToSink(sink)

	k.objects = objects.New(ctx, k.client, func(uid types.UID) {
		if w := k.worker(uid); w != nil {
			w.dirty.Store(true)
			w.poke()
		}
	})
	k.newDevices()
	k.newVolumes()
	if err := k.newUsers(ctx); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	k.prober = prober.New(ctx, prober.Config{Exec: k.execSync, Changed: k.pokePod, Event: k.probeEvent})

	services := cache.NewSharedIndexInformerWithOptions(
		cache.NewListWatchFromClient(k.client.CoreV1().RESTClient(), "services", "", fields.Everything()),
		&corev1.Service{}, cache.SharedIndexInformerOptions{Indexers: cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}})
	_ = services.SetTransform(slimService)
	k.services = corelisters.NewServiceLister(services.GetIndexer())
	k.serviceInformer = services
	k.wg.Loop(ctx, "kubelet: services", services.RunWithContext)

	loops := []struct {
		name string
		run  func(context.Context)
	}{
		{"runtime", k.followRuntime}, {"events", k.followEvents}, {"list", k.followList}, {"pods", k.followPods},
		{"node", k.registerNode}, {"lease", k.keepLease}, {"log rotation", k.rotateLogs},
		{"eviction", k.watchPressure}, {"limits of disk", k.watchLimits}, {"image collection", k.collectImages},
		{"orphans", k.collectOrphans}, {"static pods", k.followStatic},
		{"allocations", k.pruneAllocations}, {"images", k.followImages}, {"healthz", k.serveHealthz},
		{"control groups", k.limitGroups}, {"CPUs", k.pinContainers}, {"node shutdown", k.delayShutdown}, {"out of memory", k.watchMemory}, {"device plugins", k.servePlugins}, {"storage drivers", k.followDrivers}, {"pod resources", k.servePodResources},
		{"manifest URL", k.followManifestURL}, {"host", k.tellHost}, {"read-only port", k.serveReadOnly}, {"client authorities", k.followClientCA},
		{"traces", k.tracer.Run},
	}
	for _, loop := range loops {
		k.wg.Loop(ctx, "kubelet: "+loop.name, loop.run)
	}
	var serveErr error
	if k.cfg.Listen != "-" || k.cfg.Listener != nil {
		serveErr = k.serve(ctx)
	} else {
		<-ctx.Done()
	}
	cancel()
	k.wg.Wait()
	k.objects.Wait()
	k.prober.Wait()
	return serveErr
}

// useRuntime connects to the runtime, and to what serves its images, and makes their clients:
// each call has a deadline, is counted, and is a span.
func (k *Kubelet) useRuntime() (closeRuntime func(), err error) {
	if k.tracer, err = tracing.New(k.cfg.Settings.Tracing, k.cfg.Hostname); err != nil {
		return nil, err
	}
	conn, err := k.connect()
	if err != nil {
		return nil, err
	}
	images := conn
	if k.cfg.ImageEndpoint != "" {
		if images, err = dial(k.cfg.ImageEndpoint); err != nil {
			return nil, err
		}
	}
	bounded := func(c *grpc.ClientConn) grpc.ClientConnInterface {
		return deadlines{counted{traced{c, k.tracer}, k.metrics}, k.cfg.Settings.RuntimeRequestTimeout.Duration}
	}
	k.runtime, k.images = cri.NewRuntimeServiceClient(bounded(conn)), cri.NewImageServiceClient(bounded(images))
	return func() {
		if k.ownConn {
			_ = conn.Close()
		}
		if images != conn {
			_ = images.Close()
		}
	}, nil
}

// spareProcess has the kernel end others before this process when memory runs out.
func (k *Kubelet) spareProcess() {
	if k.cfg.SpareProcess == nil {
		return
	}
	if err := k.cfg.SpareProcess(int(*k.cfg.Settings.OOMScoreAdj)); err != nil {
		slog.Warn("the kernel does not spare this process when memory runs out", "err", err)
	}
}

// openFiles lets the process have as many files open as the settings say.
func (k *Kubelet) openFiles() {
	if k.cfg.OpenFiles == nil {
		return
	}
	if err := k.cfg.OpenFiles(k.cfg.Settings.MaxOpenFiles); err != nil {
		slog.Warn("the process may have as many files open as before", "err", err)
	}
}

// takeUp reads what an earlier run wrote down: who has which CPUs, memory, images and
// resources.
func (k *Kubelet) takeUp() (err error) {
	if err := k.newManagers(k.sysDir); err != nil {
		return err
	}
	if k.records, err = pullrecords.Open(k.cfg.RootDir); err != nil {
		return err
	}
	k.records.Policy = pullrecords.Policies[string(k.cfg.Settings.ImagePullCredentialsVerificationPolicy)](k.cfg.Settings.PreloadedImagesVerificationAllowlist)
	k.records.Checked = func(result string) { k.metrics.images.checked.WithLabelValues(result).Inc() }
	k.allocations, err = allocation.Open(k.cfg.RootDir)
	return err
}

// newVolumes makes what mounts volumes, and the drivers it asks.
func (k *Kubelet) newVolumes() {
	k.drivers = csi.New(csi.Config{
		RootDir: k.cfg.RootDir, NodeName: k.cfg.NodeName, Client: k.client,
		Token: func(ctx context.Context, pod *corev1.Pod, audience string, seconds *int64) (string, time.Time, error) {
			got, err := k.requestToken(ctx, pod, &corev1.ServiceAccountTokenProjection{Audience: audience, ExpirationSeconds: seconds})
			if err != nil {
				return "", time.Time{}, err
			}
			return got.Status.Token, got.Status.ExpirationTimestamp.Time, nil
		},
		Devices: k.devices, Registered: k.retryVolumes, InUseChanged: k.wakeNode,
		Did: k.metrics.volumes.did, Called: k.metrics.volumes.called, Cleaned: k.metrics.volumes.cleaned,
		Event: func(about kruntime.Object, kind, reason, message string) {
			if pod, ok := about.(*corev1.Pod); ok {
				about = podReference(pod)
			}
			k.events.Event(about, kind, reason, message)
		},
	})
	k.certificates = k.newCertificates()
	k.volumes = volume.New(volume.Config{
		PodsDir:   filepath.Join(k.cfg.RootDir, "pods"),
		ConfigMap: k.objects.ConfigMap, Secret: k.objects.Secret,
		Token: k.token, Claim: k.claim, TrustBundle: k.trustBundle, PodCertificate: k.podCertificate,
		Credentials: func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
			return k.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		CSI: k.drivers, Did: k.metrics.volumes.did, PodMemory: k.mostMemory, Projects: k.newProjects(),
		Event: func(pod *corev1.Pod, kind, reason, message string) {
			k.events.Event(podReference(pod), kind, reason, message)
		},
	})
	k.metrics.volumes.counted(k.volumes.Found(csi.Noted))
}

// followPods turns the watch of this node's pods and the services into work.
func (k *Kubelet) followPods(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), k.serviceInformer.HasSynced) {
		return
	}
	if !k.waitRuntime(ctx) {
		return
	}
	_, pods := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(k.client.CoreV1().RESTClient(), "pods", "",
			fields.OneTermEqualSelector("spec.nodeName", k.cfg.NodeName)),
		ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { k.podChanged(o.(*corev1.Pod)) },
			UpdateFunc: func(_, o any) { k.podChanged(o.(*corev1.Pod)) },
			DeleteFunc: func(o any) {
				if pod, ok := informer.Object(o).(*corev1.Pod); ok {
					k.podGone(pod)
				}
			},
		},
	})
	k.wg.Go("kubelet: pods synced", func() {
		if cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
			k.synced.open()
		}
	})
	pods.Run(ctx.Done())
}

func slimService(o any) (any, error) {
	if s, ok := o.(*corev1.Service); ok {
		s.ManagedFields, s.Annotations, s.Labels = nil, nil, nil
	}
	return o, nil
}

func (k *Kubelet) podChanged(pod *corev1.Pod) {
	if isMirror(pod) && k.worker(pod.UID) == nil {
		k.mirrorChanged(pod)
		return
	}
	pod = fromAPI(pod)
	if k.worker(pod.UID) == nil { // it is not begun meanwhile: this is the only one that does
		k.seeLabels(pod)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[pod.UID]; w != nil {
		w.set(pod)
		return
	}
	k.startWorker(pod)
}

// seeLabels asks for the Node where a pod that has yet to be taken does not fit its labels as
// they are known: they may be new, and be why the pod was bound here, and come by another
// watch than pods do.
func (k *Kubelet) seeLabels(pod *corev1.Pod) {
	n := k.node.Load()
	if n == nil || neverRuns(pod) || pod.Status.StartTime != nil || fitsLabels(pod, n) {
		return
	}
	ctx, cancel := context.WithTimeout(k.ctx, 10*time.Second)
	defer cancel()
	n, err := k.client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		slog.Warn("look at the Node again for a pod that does not fit its labels", "pod", podspec.Format(pod), "err", err)
		return
	}
	k.sawNode(n)
}

// fromAPI is a pod of the API, whatever it says of itself: as a static one it would be
// critical, and others would have to make room for it.
func fromAPI(pod *corev1.Pod) *corev1.Pod {
	if !isStatic(pod) {
		return pod
	}
	pod = &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: pod.ObjectMeta, Spec: pod.Spec, Status: pod.Status}
	pod.Annotations = maps.Clone(pod.Annotations)
	pod.Annotations[annConfigSource] = "api"
	return pod
}

// startWorker begins to run a pod; the lock is held.
func (k *Kubelet) startWorker(pod *corev1.Pod) *worker {
	w := newWorker(k, pod)
	allocated := w.shown.Load().pod
	room, e := k.admit(allocated)
	w.room = room
	if e != nil {
		k.metrics.rejected(e.reason)
		w.reject(e)
	} else if err := k.allocations.Set(allocated); err != nil {
		slog.Warn("keep the resources of a pod", "pod", podspec.Format(pod), "err", err)
	}
	k.workers[pod.UID] = w
	k.wakeClasses()
	k.wg.Go("kubelet: pod worker", func() {
		w.run(k.ctx)
		k.mu.Lock()
		if k.workers[w.uid] == w {
			delete(k.workers, w.uid)
		}
		k.mu.Unlock()
		k.wakeClasses()
		k.objects.Use(w.uid, nil)
		k.forgetPulls(w.uid)
		k.alignment.forget(w.uid)
		k.certificates.Forget(w.uid)
		k.wakeCPUs()
		k.imageWaits.set(w.uid, nil)
		if isStatic(pod) {
			k.wakeStatic()
		}
		if w.removed {
			if err := k.allocations.Remove(w.uid); err != nil {
				slog.Warn("forget the resources of a pod", "uid", w.uid, "err", err)
			}
			k.mu.Lock()
			k.makeRoom()
			k.mu.Unlock()
		}
	})
	return w
}

func (k *Kubelet) podGone(pod *corev1.Pod) {
	if isMirror(pod) {
		k.mirrorGone(pod)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[pod.UID]; w != nil {
		w.finish()
		k.makeRoom() // from now on it takes none
	}
}

func (k *Kubelet) worker(uid types.UID) *worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.workers[uid]
}

func (k *Kubelet) pokePod(uid types.UID) {
	if w := k.worker(uid); w != nil {
		w.poke()
	}
}

// retryVolumes lets pods that wait for their volumes try again at once.
func (k *Kubelet) retryVolumes() {
	for _, w := range k.all() {
		w.dirty.Store(true)
		w.poke()
	}
}

// all are the workers at this moment.
func (k *Kubelet) all() []*worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		out = append(out, w)
	}
	return out
}

// Liveness is what the liveness probe says of a container.
func (k *Kubelet) Liveness(id string) verdict { return k.verdict(id, prober.Liveness) }

// Startup is what the startup probe says of a container.
func (k *Kubelet) Startup(id string) verdict { return k.verdict(id, prober.Startup) }

func (k *Kubelet) verdict(id string, kind prober.Kind) verdict {
	v, ok := k.prober.Verdict(id, kind)
	if !ok {
		return unknown
	}
	return verdict(v)
}

func (k *Kubelet) started(c *runtimestate.Container, spec *corev1.Container) bool {
	return spec.StartupProbe == nil || k.Startup(c.Id) == success
}

func (k *Kubelet) ready(c *runtimestate.Container, spec *corev1.Container) bool {
	return spec.ReadinessProbe == nil || k.verdict(c.Id, prober.Readiness) == success
}
