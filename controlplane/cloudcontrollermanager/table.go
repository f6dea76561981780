package cloudcontrollermanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"knarr/controlplane/cloudcontrollermanager/cloudnode"
	"knarr/controlplane/cloudcontrollermanager/cloudnodelifecycle"
	"knarr/controlplane/cloudcontrollermanager/instances"
	"knarr/controlplane/cloudcontrollermanager/noderoute"
	"knarr/controlplane/cloudcontrollermanager/servicelb"
	"knarr/internal/run"
)

// A runner runs until its context ends.
type runner func(ctx context.Context) error

// An entry is one controller.
type entry struct {
	// name is upstream's, alias the older one; account is the service account it acts as.
	name, alias, account string
	// build makes the controller for one term; nil means it has nothing to do.
	build func(t *term) (runner, error)
}

// table are the controllers.
var table = []entry{
	{cloudnode.Name, "cloud-node", "node-controller", cloudNode},
	{cloudnodelifecycle.Name, "cloud-node-lifecycle", "node-controller", cloudNodeLifecycle},
	{servicelb.Name, "service", "service-controller", serviceLB},
	{noderoute.Name, "route", "route-controller", nodeRoute},
}

func cloudNode(t *term) (runner, error) {
	ask, err := instances.New(t.cloud)
	if err != nil {
		return nil, skip(cloudnode.Name, err)
	}
	cfg := cloudnode.Config{Cloud: ask, UpdateFrequency: t.NodeStatusUpdateFrequency, Metrics: t.metrics}
	if t.changed != nil {
		cfg.Changed = t.changed.follow
	}
	nodes, addresses := cloudnode.New(t.informers, t.client(), t.events(cloudnode.Name), cfg), cloudnode.NewUpdater(t.informers, t.client(), cfg)
	nodes.SetWorkers(t.ConcurrentNodeSyncs)
	addresses.SetWorkers(t.ConcurrentNodeStatusUpdates)
	return func(ctx context.Context) error {
		return run.All(ctx, run.Func(nodes.Name, nodes.Run), run.Func(addresses.Name, addresses.Run))
	}, nil
}

func cloudNodeLifecycle(t *term) (runner, error) {
	ask, err := instances.New(t.cloud)
	if err != nil {
		return nil, skip(cloudnodelifecycle.Name, err)
	}
	return cloudnodelifecycle.New(t.informers, t.client(), t.events(cloudnodelifecycle.Name), ask, t.NodeMonitorPeriod).Run, nil
}

func serviceLB(t *term) (runner, error) {
	balancer, ok := t.cloud.LoadBalancer()
	if !ok || balancer == nil {
		return nil, skip(servicelb.Name, errors.New("the cloud provider does not support external load balancers"))
	}
	c := servicelb.New(t.informers, t.client(), t.events("service-controller"), balancer, t.ClusterName, t.metrics)
	c.SetWorkers(t.ConcurrentServiceSyncs)
	return c.Run, nil
}

func nodeRoute(t *term) (runner, error) {
	if t.NoRoutes {
		return nil, nil
	}
	routes, ok := t.cloud.Routes()
	if !ok || routes == nil {
		return nil, skip(noderoute.Name, errors.New("cloud provider does not support routes"))
	}
	if len(t.ClusterCIDRs) == 0 {
		return nil, errors.New("--cluster-cidr: the cloud provider has routes, so give the ranges of pod addresses, or --configure-cloud-routes=false")
	}
	return noderoute.New(t.informers, t.client(), t.events("route_controller"), noderoute.Config{
		Routes: routes, ClusterName: t.ClusterName, ClusterCIDRs: t.ClusterCIDRs, Period: t.RouteReconciliationPeriod,
		WatchBased: t.WatchBasedRoutes, Metrics: t.metrics,
	}).Run, nil
}

// skip says why a controller has nothing to do with this provider.
func skip(name string, why error) error {
	slog.Info("controller does not run", "controller", name, "why", why)
	return nil
}

// choose gives the controllers of the table that selection turns on. What is named
// goes before "*", and off before on.
func choose(selection []string) (on []entry, err error) {
	if len(selection) == 0 {
		selection = []string{"*"}
	}
	named := map[string]bool{}
	for _, s := range selection {
		text, off := strings.CutPrefix(s, "-")
		i := slices.IndexFunc(table, func(e entry) bool { return e.name == text || e.alias == text })
		switch {
		case i >= 0:
			text = table[i].name
		case s != "*":
			return nil, fmt.Errorf("--controllers: %q is not in the list of known controllers", text)
		}
		if off {
			text = "-" + text
		}
		named[text] = true
	}
	for _, e := range table {
		if !named["-"+e.name] && (named[e.name] || named["*"]) {
			on = append(on, e)
		}
	}
	return on, nil
}
