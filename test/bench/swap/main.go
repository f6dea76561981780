// Command swap puts one of upstream's components at a time into a knarr cluster,
// and one of knarr's into an upstream cluster, plays the same scenario on each,
// has each side's API server and etcd go on with the data of the other's, and
// prints the matrix. It writes below a directory of its own while it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"knarr/test/bench/rig"
)

// A combination is one cluster with one component exchanged.
type combination struct {
	name  string
	start func(ctx context.Context, p rig.Programs, dir string) (*rig.Cluster, error)
	// play, if there is one, stands for start and the scenario, and says what it saw.
	play func(ctx context.Context, p rig.Programs, dir string) (output string, err error)
}

// knarrWith is knarr without some parts, and what takes their place.
func knarrWith(node bool, without []string, upstream []string, own ...string) func(context.Context, rig.Programs, string) (*rig.Cluster, error) {
	return func(ctx context.Context, p rig.Programs, dir string) (*rig.Cluster, error) {
		c, err := rig.Knarr(ctx, p, dir, node, without...)
		if err != nil {
			return nil, err
		}
		return add(c, p, upstream, own)
	}
}

// upstreamWith is upstream's API server with other components of its, and some
// of knarr.
func upstreamWith(upstream []string, own ...string) func(context.Context, rig.Programs, string) (*rig.Cluster, error) {
	return func(ctx context.Context, p rig.Programs, dir string) (*rig.Cluster, error) {
		c, err := rig.Upstream(ctx, p, dir)
		if err != nil {
			return nil, err
		}
		return add(c, p, upstream, own)
	}
}

func add(c *rig.Cluster, p rig.Programs, upstream, own []string) (*rig.Cluster, error) {
	for _, name := range upstream {
		if err := c.AddUpstream(p, name); err != nil {
			c.Stop()
			return nil, err
		}
	}
	for _, name := range own {
		if err := c.AddKnarr(p, name); err != nil {
			c.Stop()
			return nil, err
		}
	}
	return c, nil
}

// kubeadm is upstream's API server and a node of knarr's that runs the manifests
// kubeadm writes, with knarr for the program in their image.
func kubeadm(ctx context.Context, p rig.Programs, dir string) (*rig.Cluster, error) {
	c, err := rig.Upstream(ctx, p, dir)
	if err != nil {
		return nil, err
	}
	if err := c.Kubeadm(ctx, p, "controller-manager", "scheduler"); err != nil {
		c.Stop()
		return nil, err
	}
	return add(c, p, nil, []string{"node", "kube-proxy", "dns"})
}

// upstreamsDNS is the one that needs CoreDNS, which takes minutes to build.
const upstreamsDNS = "upstream's DNS in knarr"

var combinations = []combination{
	{name: "knarr as it is", start: knarrWith(true, nil, nil)},
	{name: "upstream's kube-scheduler in knarr", start: knarrWith(true, []string{"scheduler"}, []string{"kube-scheduler"})},
	{name: "upstream's kube-controller-manager in knarr", start: knarrWith(true, []string{"controller-manager"}, []string{"kube-controller-manager"})},
	{name: "upstream's kube-proxy in knarr", start: knarrWith(true, []string{"kube-proxy"}, []string{"kube-proxy"})},
	{name: upstreamsDNS, start: knarrWith(true, []string{"coredns"}, []string{"coredns"})},
	{name: "upstream's kubelet and containerd in knarr", start: knarrWith(false, nil, []string{"node"}, "kube-proxy", "dns")},
	{name: "upstream's kube-apiserver with all of knarr", start: upstreamWith(nil, "controller-manager", "scheduler", "node", "kube-proxy", "dns")},
	{name: "knarr's scheduler in upstream", start: upstreamWith([]string{"kube-controller-manager", "node", "kube-proxy"}, "scheduler", "dns")},
	{name: "knarr's controllers in upstream", start: upstreamWith([]string{"kube-scheduler", "node", "kube-proxy"}, "controller-manager", "dns")},
	{name: "knarr in kubeadm's static pods", start: kubeadm},
	{name: "knarr's kubelet in upstream", start: upstreamWith([]string{"kube-controller-manager", "kube-scheduler", "kube-proxy"}, "node", "dns")},
	{name: "knarr's kube-proxy in upstream", start: upstreamWith([]string{"kube-controller-manager", "kube-scheduler", "node"}, "kube-proxy", "dns")},
	{name: "knarr's DNS in upstream", start: upstreamWith([]string{"kube-controller-manager", "kube-scheduler", "node", "kube-proxy"}, "dns")},
	{name: "knarr's data under upstream's etcd and API server", play: moved(true)},
	{name: "upstream's data under knarr's etcd and API server", play: moved(false)},
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	repository := flag.String("repository", "../..", "`directory` of the repository")
	cache := flag.String("cache", "", "`directory` of built upstream programs (default: knarr in the user's cache directory)")
	work := flag.String("dir", "", "`directory` to run in, kept (default: a temporary one)")
	only := flag.String("run", "", "`regexp` of the combinations to play")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		err = fmt.Errorf("-run: %w", err)
	}
	var programs rig.Programs
	if err == nil {
		programs, err = rig.Find(*repository, *cache)
	}
	if err == nil {
		err = rig.Isolate(ctx, func(ctx context.Context) error {
			if err := programs.Build(ctx, true, "kubeadm"); err != nil || !pattern.MatchString(upstreamsDNS) {
				return err
			}
			return programs.BuildCoreDNS(ctx)
		})
	}
	var passed, failed int
	if err == nil {
		passed, failed, err = swap(ctx, programs, *work, pattern)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "swap:", err)
		os.Exit(1)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func swap(ctx context.Context, programs rig.Programs, work string, pattern *regexp.Regexp) (passed, failed int, err error) {
	if work == "" {
		if work, err = os.MkdirTemp("", "knarr-swap-"); err != nil {
			return 0, 0, err
		}
		defer os.RemoveAll(work)
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return 0, 0, err
	}
	image, err := rig.TestImage(ctx, programs, work)
	if err != nil {
		return 0, 0, err
	}
	for i, combination := range combinations {
		if !pattern.MatchString(combination.name) {
			continue
		}
		began := time.Now()
		output, err := play(ctx, combination, programs, filepath.Join(work, fmt.Sprint(i)), image)
		if ctx.Err() != nil {
			return passed, failed, ctx.Err()
		}
		if err != nil {
			failed++
			fmt.Printf("%-50s fails   %5.1fs  %v\n", combination.name, time.Since(began).Seconds(), err)
			continue
		}
		passed++
		fmt.Printf("%-50s works   %5.1fs  %s\n", combination.name, time.Since(began).Seconds(), output)
	}
	return passed, failed, nil
}

// playTime bounds one combination.
const playTime = 3 * time.Minute

func play(ctx context.Context, combination combination, p rig.Programs, dir, image string) (output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, playTime)
	defer cancel()
	if combination.play != nil {
		return combination.play(ctx, p, dir)
	}
	c, err := combination.start(ctx, p, dir)
	if err != nil {
		return "", fmt.Errorf("start: %w", err)
	}
	defer c.Stop()
	if err := c.NodeReady(ctx); err != nil {
		return "", err
	}
	if err := c.Load(p, image); err != nil {
		return "", err
	}
	return "", errors.Join(c.StaticPods(ctx), scenario(ctx, c, p), c.Alive())
}
