package alone

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"knarr/node/kubeproxy"
)

type proxy struct {
	client
	node, clusterCIDR, healthz, metrics, nodePorts string
}

func (p *proxy) flags(f *pflag.FlagSet) {
	p.client.flags(f)
	f.StringVar(&p.node, "hostname-override", "", "`name` of this node (default: the host name)")
	f.StringVar(&p.clusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses; what comes from elsewhere is masqueraded")
	f.StringVar(&p.healthz, "healthz-bind-address", "0.0.0.0:10256", "`address` of /healthz and /livez; empty: none")
	f.StringVar(&p.metrics, "metrics-bind-address", "127.0.0.1:10249", "`address` of /metrics and /proxyMode; empty: none")
	f.StringVar(&p.nodePorts, "nodeport-addresses", "primary", "`ranges` of this node's addresses that node ports are at; primary: the first address of each family of its Node")
}

func (p *proxy) run(ctx context.Context) error {
	kube, err := p.config("kube-proxy")
	if err != nil {
		return err
	}
	cidrs, err := ranges("cluster-cidr", p.clusterCIDR)
	if err != nil {
		return err
	}
	nodePorts, err := ranges("nodeport-addresses", strings.TrimPrefix(p.nodePorts, "primary"))
	if err != nil {
		return err
	}
	if p.node, err = nodeName(p.node); err != nil {
		return err
	}
	kp, err := kubeproxy.New(kubeproxy.Config{Kube: kube, NodeName: p.node, ClusterCIDRs: cidrs, Healthz: p.healthz, Metrics: p.metrics, NodePorts: nodePorts})
	if err != nil {
		return err
	}
	return kp.Run(ctx)
}

func nodeName(given string) (string, error) {
	if given != "" {
		return strings.ToLower(given), nil
	}
	host, err := os.Hostname()
	return strings.ToLower(host), err
}
