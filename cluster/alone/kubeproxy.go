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
	node, clusterCIDR, healthz string
}

func (p *proxy) flags(f *pflag.FlagSet) {
	p.client.flags(f)
	f.StringVar(&p.node, "hostname-override", "", "`name` of this node (default: the host name)")
	f.StringVar(&p.clusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses; what comes from elsewhere is masqueraded")
	f.StringVar(&p.healthz, "healthz-bind-address", "0.0.0.0:10256", "`address` of /healthz; empty: none")
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
	if p.node, err = nodeName(p.node); err != nil {
		return err
	}
	kp, err := kubeproxy.New(kubeproxy.Config{Kube: kube, NodeName: p.node, ClusterCIDRs: cidrs, Healthz: p.healthz})
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
