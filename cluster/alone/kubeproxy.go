package alone

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"knarr/cluster/proxyflags"
	"knarr/internal/flaghelp"
	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/mode"
)

type proxy struct {
	client
	proxyflags.Flags
	cleanup bool
}

func (p *proxy) flags(f *pflag.FlagSet) {
	p.client.flags(f)
	f.BoolVar(&p.cleanup, "cleanup", false, "remove what the proxy has left in the kernel, in whatever mode, and end")
	flaghelp.Group(f, "Flags")
	p.Bind(f)
}

// table is the proxy's name in the kernel.
const table = "knarr"

func (p *proxy) run(ctx context.Context) error {
	if p.cleanup {
		return mode.Remove(table)
	}
	if err := p.Load(); err != nil {
		return err
	}
	if p.kubeconfig == "" {
		p.kubeconfig = p.Kubeconfig
	}
	kube, err := p.config("kube-proxy")
	if err != nil {
		return err
	}
	name, err := nodeName(p.NodeName)
	if err != nil {
		return err
	}
	cfg, err := p.Open(kubeproxy.Config{Kube: kube, NodeName: name, Table: table}, proxyflags.Records{})
	if err != nil {
		return err
	}
	kp, err := kubeproxy.New(cfg)
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
