package alone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/cluster/alone/secureserving"
	"knarr/cluster/componentflags"
	"knarr/controlplane/cloudcontrollermanager"
	"knarr/controlplane/cloudcontrollermanager/baremetal"
	"knarr/internal/flaghelp"
	"knarr/internal/healthz"
)

type cloudControllerManager struct {
	client
	secure                             secureserving.Options
	lease                              componentflags.Election
	connection                         componentflags.Connection
	provider, config                   string
	controllers                        []string
	clusterName, clusterCIDR           string
	ownAccounts, allocate, routes      bool
	untagged                           bool
	routePeriod, monitor, updates      time.Duration
	nodeSyncs, statusSyncs, serviceOps int
	gates                              componentflags.Gates
	values                             func() map[string]string
	f                                  *pflag.FlagSet
}

func (m *cloudControllerManager) flags(f *pflag.FlagSet) {
	m.values, m.f = values(f), f
	m.client.flags(f)
	m.secure.Flags(f, cloudprovider.CloudControllerManagerPort)
	m.lease.Bind(f, "cloud-controller-manager")
	m.connection.Bind(f, 20, 30)
	f.StringVar(&m.provider, "cloud-provider", "", "`name` of the cloud provider: "+baremetal.Name)
	flaghelp.Values(f, "cloud-provider", baremetal.Name)
	f.StringVar(&m.config, "cloud-config", "", "`file` of the cloud provider's configuration; knarr's lists the machines")
	f.StringSliceVar(&m.controllers, "controllers", []string{"*"}, "`names` of controllers to run; * is all, -name leaves one out")
	f.StringVar(&m.clusterName, "cluster-name", "kubernetes", "`name` by which the cloud provider knows the cluster")
	f.StringVar(&m.clusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses, outside of which routes are left alone")
	f.BoolVar(&m.allocate, "allocate-node-cidrs", false, "nodes get ranges of pod addresses, which kube-controller-manager gives them; needs --cluster-cidr")
	f.BoolVar(&m.routes, "configure-cloud-routes", true, "make the cloud provider's routes those of the nodes' ranges")
	f.DurationVar(&m.routePeriod, "route-reconciliation-period", 10*time.Second, "`time` between two comparisons of routes with nodes")
	f.DurationVar(&m.monitor, "node-monitor-period", 5*time.Second, "`time` between two questions about the instance of a node that is not ready")
	f.DurationVar(&m.updates, "node-status-update-frequency", 5*time.Minute, "`time` between two questions for a node's addresses")
	f.IntVar(&m.nodeSyncs, "concurrent-node-syncs", 1, "`number` of nodes initialised at once")
	f.IntVar(&m.statusSyncs, "concurrent-node-status-updates", 0, "`number` of nodes asked about at once; 0: --concurrent-node-syncs")
	f.IntVar(&m.serviceOps, "concurrent-service-syncs", 1, "`number` of Services whose load balancers are made or changed at once")
	f.BoolVar(&m.ownAccounts, "use-service-account-credentials", false, "run each controller as a service account of its own")
	f.BoolVar(&m.untagged, "allow-untagged-cloud", false, "run also with a cloud provider that has no ID of the cluster")
	m.gates.Bind(f, watchBasedRoutes+"=true compares routes after changes of nodes in place of each period", watchBasedRoutes)
	componentflags.BindIdle(f, cloudIdle)
}

// watchBasedRoutes is the feature gate of routes.
const watchBasedRoutes = "CloudControllerManagerWatchBasedRoutesReconciliation"

// providers are those of this program. A vendor's that is linked into a build and
// registered with k8s.io/cloud-provider is found there.
var providers = map[string]func(file string) (cloudprovider.Interface, error){
	baremetal.Name: func(file string) (cloudprovider.Interface, error) { return baremetal.Open(file) },
}

// open makes the provider.
func (m *cloudControllerManager) open() (cloudprovider.Interface, error) {
	if own, ok := providers[m.provider]; ok {
		return own(m.config)
	}
	var file io.Reader // nil without one, which providers look at
	if m.config != "" {
		b, err := os.ReadFile(m.config)
		if err != nil {
			return nil, fmt.Errorf("--cloud-config: %w", err)
		}
		file = bytes.NewReader(b)
	}
	cloud, err := cloudprovider.GetCloudProvider(m.provider, file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--cloud-provider: could not init cloud provider %q: %w", m.provider, err)
	case cloud == nil:
		return nil, fmt.Errorf("--cloud-provider: unknown cloud provider %q; there is %s", m.provider, baremetal.Name)
	case !cloud.HasClusterID() && !m.untagged:
		return nil, errors.New("--cloud-provider: no ClusterID found; give the cluster's machines one in the cloud, or --allow-untagged-cloud")
	}
	return cloud, nil
}

func (m *cloudControllerManager) run(ctx context.Context) error {
	if err := errors.Join(m.secure.Validate(), m.lease.Validate(), m.connection.Validate(), m.gates.Validate(), m.validate(), componentflags.CheckIdle(m.f, cloudIdle)); err != nil {
		return err
	}
	first, err := m.open() // what is wrong with it is said at the start
	if err != nil {
		return err
	}
	kube, err := m.client.config("cloud-controller-manager")
	if err != nil {
		return err
	}
	m.connection.Apply(kube)
	healthy := m.lease.Watch()
	cfg := cloudcontrollermanager.Config{
		Kube: kube, LeaderElect: m.lease.On, Election: m.lease.Times, Controllers: m.controllers, ClusterName: m.clusterName,
		NoRoutes: !m.routes, WatchBasedRoutes: m.gates.Enabled(watchBasedRoutes), RouteReconciliationPeriod: m.routePeriod,
		NodeMonitorPeriod: m.monitor, NodeStatusUpdateFrequency: m.updates,
		ConcurrentNodeSyncs: m.nodeSyncs, ConcurrentNodeStatusUpdates: m.statusSyncs, ConcurrentServiceSyncs: m.serviceOps,
		Cloud: func() (cloudprovider.Interface, error) {
			if cloud := first; cloud != nil {
				first = nil
				return cloud, nil
			}
			return m.open()
		},
	}
	cfg.QPS, cfg.Burst = m.connection.Limits()
	if cfg.ClusterCIDRs, err = ranges("cluster-cidr", m.clusterCIDR); err != nil {
		return err
	}
	if m.ownAccounts {
		c, err := kubernetes.NewForConfig(kube)
		if err != nil {
			return err
		}
		cfg.ClientFor = func(name string) *rest.Config { return asServiceAccount(ctx, c, kube, name) }
	}
	manager, err := cloudcontrollermanager.New(cfg)
	if err != nil {
		return err
	}
	return m.secure.With(ctx, secureserving.Component{Name: "cloud-controller-manager", Flags: m.values,
		Checks: func(string) []healthz.Check { return elected(healthy) }, Config: map[string]any{
			"cloudcontrollermanager.config.k8s.io": cloudConfiguration.Show(m.f)}}, manager.Run)
}

// validate names what cannot be.
func (m *cloudControllerManager) validate() error {
	var errs []error
	bad := func(when bool, flag, why string) {
		if when {
			errs = append(errs, fmt.Errorf("--%s: %s", flag, why))
		}
	}
	bad(m.provider == "", "cloud-provider", "name a cloud provider; there is "+baremetal.Name)
	bad(m.provider == "external", "cloud-provider", "external is for kubelets, and says that this program runs; name the provider: "+baremetal.Name)
	bad(m.allocate && m.clusterCIDR == "", "allocate-node-cidrs", "give the ranges of pod addresses with --cluster-cidr")
	bad(len(strings.Split(m.clusterCIDR, ",")) > 2, "cluster-cidr", "at most one range of each address family")
	for flag, d := range map[string]time.Duration{"route-reconciliation-period": m.routePeriod, "node-monitor-period": m.monitor, "node-status-update-frequency": m.updates} {
		bad(d <= 0, flag, "must be greater than zero")
	}
	bad(m.nodeSyncs <= 0, "concurrent-node-syncs", "must be greater than zero")
	bad(m.statusSyncs < 0, "concurrent-node-status-updates", "must not be negative")
	bad(m.serviceOps <= 0, "concurrent-service-syncs", "must be greater than zero")
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// cloudConfiguration is upstream's CloudControllerManagerConfiguration: what its program
// serves at /configz.
var cloudConfiguration = componentflags.Fields{
	Kind: "CloudControllerManagerConfiguration", APIVersion: "cloudcontrollermanager.config.k8s.io/v1alpha1",
	Flags: componentflags.WithShared(map[string]string{
		"Generic.ClientConnection.burst":             "kube-api-burst",
		"Generic.ClientConnection.contentType":       "kube-api-content-type",
		"Generic.ClientConnection.qps":               "kube-api-qps",
		"Generic.ControllerStartInterval":            "controller-start-interval",
		"Generic.LeaderMigrationEnabled":             "enable-leader-migration",
		"Generic.MinResyncPeriod":                    "min-resync-period",
		"KubeCloudShared.CIDRAllocatorType":          "cidr-allocator-type",
		"KubeCloudShared.ExternalCloudVolumePlugin":  "external-cloud-volume-plugin",
		"KubeCloudShared.NodeSyncPeriod":             "node-sync-period",
		"NodeController.ConcurrentNodeSyncs":         "concurrent-node-syncs",
		"NodeController.ConcurrentNodeStatusUpdates": "concurrent-node-status-updates",
		"NodeStatusUpdateFrequency":                  "node-status-update-frequency",
		"ServiceController.ConcurrentServiceSyncs":   "concurrent-service-syncs",
		"Webhook.Webhooks":                           "webhooks",
	}),
	Fixed: map[string]any{
		"Generic.ClientConnection.acceptContentTypes": "application/vnd.kubernetes.protobuf,application/json",
		"Generic.LeaderMigration":                     map[string]any{"leaderName": "", "resourceLock": "", "controllerLeaders": nil},
	},
}
