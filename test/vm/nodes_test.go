package vm

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// testNodes runs a cluster of two nodes, each in namespaces of its own on one bridge, for
// each way to the pods of another node: whole requests and files of more than a packet go
// both ways, by the link that they shall go by, with the pods' own addresses.
func testNodes(t *testing.T, g *guest) {
	before := must(t, g, time.Minute, leftovers)
	for _, c := range []struct {
		backend string
		tunnel  bool
	}{{"wireguard-native", true}, {"vxlan", true}, {"vxlan-direct", false}, {"host-gw", false}} {
		t.Run(c.backend, func(t *testing.T) {
			defer func() { must(t, g, 3*time.Minute, "/given/knarr dev down --name vm") }()
			defer func() {
				if t.Failed() {
					logs, _, err := g.run(2*time.Minute, nodesKubectl+"get pods,nodes,events -A -o wide; tail -n 40 /var/lib/knarr-dev/vm/*.log")
					t.Logf("%s\n%v", logs, err)
				}
			}()
			for _, step := range []string{
				"/given/knarr dev up --name vm --nodes 2 --timeout 7m -- --flannel-backend=" + c.backend,
				"/given/knarr images load --all-nodes --name vm /given/hello.tar",
				nodesKubectl + "apply -f /given/nodes.yaml && " + nodesKubectl + "rollout status daemonset/web --timeout=400s",
			} {
				must(t, g, 8*time.Minute, step)
			}
			pods := podsOfNodes(t, g)
			tunnel, cable := linkBytes(t, g, "knarrx"), linkBytes(t, g, "eth0")
			for i, from := range pods {
				to := pods[1-i]
				ask := nodesKubectl + "exec " + from.name + " -- "
				if out := must(t, g, 3*time.Minute, ask+"wget -qO- http://"+to.address+":8080"); out != "hello from "+to.name+"\n" {
					t.Errorf("%s says %q", to.name, out)
				}
				if log := must(t, g, 3*time.Minute, nodesKubectl+"logs "+to.name); !strings.Contains(log, from.address+"]:") {
					t.Errorf("%s does not see the address of %s:\n%s", to.name, from.name, log)
				}
				must(t, g, 4*time.Minute, fmt.Sprintf("%ssh -c 'wget -qO /tmp/got http://%s:8080/large && busybox cmp /tmp/got /bin/busybox'", ask, to.address))
				must(t, g, 4*time.Minute, ask+"cat /bin/busybox | cmp - /bin/busybox") // by way of the API server
			}
			must(t, g, 4*time.Minute, nodesKubectl+"exec "+pods[0].name+" -- sh -c 'for i in $(busybox seq 30); do wget -qO- http://web; done' >/tmp/seen && test $(sort -u /tmp/seen | wc -l) = 2 && rm /tmp/seen")
			// Each node has sent the other a file.
			tunnel, cable = linkBytes(t, g, "knarrx")-tunnel, linkBytes(t, g, "eth0")-cable
			switch {
			case cable < 2*large:
				t.Errorf("the nodes' cable has carried %d bytes", cable)
			case c.tunnel && tunnel < 2*large:
				t.Errorf("the tunnel has carried %d bytes", tunnel)
			case !c.tunnel && tunnel > 1e5:
				t.Errorf("the tunnel has carried %d bytes between nodes that share a link", tunnel)
			}
		})
	}
	if after := must(t, g, time.Minute, leftovers); after != before {
		t.Errorf("knarr dev down leaves something; before:\n%s\nafter:\n%s", before, after)
	}
}

const nodesKubectl = "KUBECONFIG=/var/lib/knarr-dev/vm/kubeconfig " + kubectl

type podOfNode struct{ name, address string }

// podsOfNodes are the pods of web, one of each node.
func podsOfNodes(t *testing.T, g *guest) (pods []podOfNode) {
	t.Helper()
	out := must(t, g, 3*time.Minute, nodesKubectl+`get pods -l app=web --sort-by=.spec.nodeName -o jsonpath='{range .items[*]}{.spec.nodeName} {.metadata.name} {.status.podIP}{"\n"}{end}'`)
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != fmt.Sprintf("vm-%d", i+1) {
			t.Fatalf("pods:\n%s", out)
		}
		pods = append(pods, podOfNode{f[1], f[2]})
	}
	if len(pods) != 2 {
		t.Fatalf("pods:\n%s", out)
	}
	return pods
}

// large is less than the file has that each node sends the other.
const large = 1e6

// linkBytes is what the first node has received and sent by the link whose name begins so;
// 0 without one.
func linkBytes(t *testing.T, g *guest, prefix string) (n int) {
	t.Helper()
	for line := range strings.Lines(must(t, g, time.Minute, "nsenter --net=$(echo /run/knarr-dev-*/vm-1.net) cat /proc/net/dev")) {
		name, counts, _ := strings.Cut(line, ":")
		if f := strings.Fields(counts); strings.HasPrefix(strings.TrimSpace(name), prefix) && len(f) > 8 {
			var in, out int
			if _, err := fmt.Sscan(f[0]+" "+f[8], &in, &out); err != nil {
				t.Fatal(err)
			}
			n += in + out
		}
	}
	return n
}
