// Package alone runs one component by itself, with upstream's flag names, so
// that each can stand in for upstream's or beside it. It reads flags and the
// kubeconfigs and certificates they name; a component alone reaches the others
// over the network as upstream's do.
package alone

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"knarr/internal/version"
)

// A Component is one program of a cluster.
type Component struct {
	Name, Help string
	new        func() program
}

// A program declares its flags and runs until ctx ends.
type program interface {
	flags(*pflag.FlagSet)
	run(ctx context.Context) error
}

// Components in the order help shows them.
var Components = []Component{
	{"apiserver", "the API server alone, on an etcd elsewhere", func() program { return &apiServer{} }},
	{"etcd", "one etcd member alone", func() program { return &etcdMember{} }},
	{"scheduler", "the scheduler alone", func() program { return &schedulerProgram{} }},
	{"controller-manager", "the controllers alone", func() program { return &controllerManager{} }},
	{"cloud-controller-manager", "the cloud controllers alone", func() program { return &cloudControllerManager{} }},
	{"kubelet", "the kubelet alone, on another container runtime", func() program { return &kubeletProgram{} }},
	{"kube-proxy", "the service proxy alone", func() program { return &proxy{} }},
	{"dns", "the DNS server alone", func() program { return &dnsServer{} }},
}

// client is the flags of who speaks to an API server.
type client struct {
	kubeconfig, masterURL string
}

func (c *client) flags(f *pflag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "`file` that says where the API server is and who to be")
	f.StringVar(&c.masterURL, "master", "", "`URL` of the API server, in place of the kubeconfig's")
}

// config reaches the API server as name, which tells components apart in logs.
func (c *client) config(name string) (*rest.Config, error) {
	if c.kubeconfig == "" && c.masterURL == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "" { // within a pod the account is the pod's
		return nil, errNoKubeconfig
	}
	cfg, err := clientcmd.BuildConfigFromFlags(c.masterURL, c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	as(name, cfg)
	return cfg, nil
}

var errNoKubeconfig = errors.New("--kubeconfig: name the file that says where the API server is")

// as completes what a kubeconfig says for a component.
func as(name string, cfg *rest.Config) {
	cfg.QPS = -1
	cfg.UserAgent = version.UserAgent(name, "alone")
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
}
