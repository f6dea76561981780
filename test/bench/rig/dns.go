package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// coreDNS is the module that upstream's DNS server is, with its version.
const coreDNS = "github.com/coredns/coredns@v1.12.4"

func (p Programs) coreDNS() string { return filepath.Join(p.cache, "coredns-v1.12.4") }

// BuildCoreDNS builds it as its own module says, once.
func (p Programs) BuildCoreDNS(ctx context.Context) error {
	if p.Against != "" || exists(p.coreDNS()) {
		return nil
	}
	fmt.Fprintln(os.Stderr, "building CoreDNS, once")
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", coreDNS).Output()
	if err != nil {
		return fmt.Errorf("download %s: %w", coreDNS, err)
	}
	var at struct{ Dir string }
	if err := json.Unmarshal(out, &at); err != nil {
		return fmt.Errorf("download %s: %w", coreDNS, err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-C", at.Dir, "-trimpath", "-ldflags", "-s -w", "-o", p.coreDNS()+".new", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", coreDNS, err, text)
	}
	return os.Rename(p.coreDNS()+".new", p.coreDNS())
}

// corefile is what kubeadm configures CoreDNS with, at an address and a port and with a
// kubeconfig, since it runs in no pod. Other names are asked for as a file like
// /etc/resolv.conf says.
const corefile = `.:%[2]s {
    bind %[1]s
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       kubeconfig %[3]s
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    forward . %[4]s {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    loadbalance
}
`

// startCoreDNS starts it at an address for those who have this kubeconfig.
func (c *Cluster) startCoreDNS(p Programs, address, kubeconfig, resolv string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir, "Corefile")
	if err := writeFile(config, fmt.Sprintf(corefile, host, port, kubeconfig, resolv)); err != nil {
		return err
	}
	return c.run(dnsName, p.coreDNS(), "-conf", config)
}

// dnsName is the process of a DNS server that runs alone.
const dnsName = "dns"

// StartDNS starts knarr's DNS server, or CoreDNS, against this cluster. Other names are
// asked for at elsewhere, on port 53.
func (c *Cluster) StartDNS(p Programs, own bool, elsewhere string) (address string, server *Process, err error) {
	ports, err := freePorts(1)
	if err != nil {
		return "", nil, err
	}
	address = fmt.Sprintf("%s:%d", hostAddress(), ports[0])
	resolv := filepath.Join(c.Dir, "resolv.conf")
	if err := writeFile(resolv, "nameserver "+elsewhere+"\n"); err != nil {
		return "", nil, err
	}
	k, err := c.pki.kubeconfig(c.Server, "dns", "system:dns", admins)
	if err != nil {
		return "", nil, err
	}
	if own {
		err = c.run(dnsName, p.Knarr, "dns", "--kubeconfig", k, "--listen", address, "--resolv-conf", resolv)
	} else {
		err = c.startCoreDNS(p, address, k, resolv)
	}
	if err != nil {
		return "", nil, err
	}
	return address, c.Processes[len(c.Processes)-1], nil
}
