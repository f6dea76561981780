// Package dev runs clusters of several nodes on one machine, to try things on:
// each node is the knarr of a real one, in namespaces of its own. It reads the
// host's routes, and writes below its own directory, a directory in /run, a
// bridge with its links, and one nftables table; all of it goes by names that
// derive from the cluster's directory, so that what a crash left is found. Only
// /var/lib/kubelet has the same name for all: each node has its own mounted there.
package dev

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation"

	"knarr/cluster"
)

// DefaultDir is where the clusters live.
const DefaultDir = "/var/lib/knarr-dev"

// DefaultName is a cluster's name unless another is given.
const DefaultName = "dev"

// A Cluster is one of several nodes on this machine.
type Cluster struct {
	name string
	dir  string // of this one
	base string // of all
	hash string
}

// Open names a cluster, which need not be there.
func Open(base, name string) (*Cluster, error) {
	if e := validation.IsDNS1123Label(name); len(e) > 0 || len(name) > 40 {
		return nil, fmt.Errorf("--name %q: give at most 40 lower case letters, digits and dashes, a letter or digit first and last", name)
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	dir := filepath.Join(base, name)
	sum := sha256.Sum256([]byte(dir))
	return &Cluster{name: name, dir: dir, base: base, hash: hex.EncodeToString(sum[:3])}, nil
}

// What belongs to the cluster on this machine. Links have at most 15 characters.
func (c *Cluster) stateFile() string           { return filepath.Join(c.dir, "dev.json") }
func (c *Cluster) lockFile() string            { return filepath.Join(c.base, "."+c.name+".lock") }
func (c *Cluster) run() string                 { return cluster.DevRunPrefix + c.hash }
func (c *Cluster) bridge() string              { return "kdev" + c.hash }
func (c *Cluster) link(n int) string           { return fmt.Sprintf("kdev%s-%d", c.hash, n) }
func (c *Cluster) table() string               { return "knarr-dev-" + c.hash }
func (c *Cluster) node(n int) string           { return c.name + "-" + strconv.Itoa(n) }
func (c *Cluster) data(n int) string           { return filepath.Join(c.dir, c.node(n)) }
func (c *Cluster) log(n int) string            { return c.data(n) + ".log" }
func (c *Cluster) space(n int, k space) string { return filepath.Join(c.run(), c.node(n)+"."+k.name) }

// flags name the cluster in what a user may type next.
func (c *Cluster) flags() (f string) {
	if c.base != DefaultDir {
		f += " --dir " + c.base
	}
	if c.name != DefaultName {
		f += " --name " + c.name
	}
	return f
}

// Kubeconfig is the administrator's, good on this machine.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// state is what was chosen when the cluster was made.
type state struct {
	Nodes   int     `json:"nodes"`
	Servers int     `json:"servers"` // the first ones
	Outside bool    `json:"outside"`
	family          // the first one
	Second  *family `json:"second,omitempty"`
}

// A family is the ranges of one address family.
type family struct {
	Hosts    netip.Prefix `json:"hosts"`
	Pods     netip.Prefix `json:"pods"`
	Services netip.Prefix `json:"services"`
}

// families are the cluster's, the first one first.
func (s state) families() []family {
	if s.Second == nil {
		return []family{s.family}
	}
	return []family{s.family, *s.Second}
}

// all are the ranges of one kind, separated by commas, as flags take them.
func (s state) all(kind func(family) netip.Prefix) string {
	var list []string
	for _, f := range s.families() {
		list = append(list, kind(f).String())
	}
	return strings.Join(list, ",")
}

func (f family) hosts() netip.Prefix    { return f.Hosts }
func (f family) pods() netip.Prefix     { return f.Pods }
func (f family) services() netip.Prefix { return f.Services }

func (f family) v6() bool { return f.Hosts.Addr().Is6() }

// addresses are a node's, separated by commas.
func (s state) addresses(n int) string {
	var list []string
	for _, f := range s.families() {
		list = append(list, f.address(n).String())
	}
	return strings.Join(list, ",")
}

// address is a node's; the first of the range is this host's.
func (f family) address(n int) netip.Addr {
	a := f.Hosts.Addr().Next()
	for range n {
		a = a.Next()
	}
	return a
}

// dns is the address of the Service kube-dns.
func (f family) dns() netip.Addr {
	a := f.Services.Addr()
	for range 10 {
		a = a.Next()
	}
	return a
}

// load reads the state; false if the cluster was not made.
func (c *Cluster) load() (s state, made bool, err error) {
	b, err := os.ReadFile(c.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return s, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
		s.Servers = max(1, s.Servers) // of when there was always one
	}
	if err != nil {
		return s, false, fmt.Errorf("read %s: %w", c.stateFile(), err)
	}
	return s, true, nil
}

func (c *Cluster) store(s state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	next := c.stateFile() + ".new"
	if err := os.WriteFile(next, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(next, c.stateFile())
}

// lock lets one command at a time change the cluster.
func (c *Cluster) lock() (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("knarr dev makes namespaces and links and must be root; start it with sudo")
	}
	if err := os.MkdirAll(c.base, 0o755); err != nil {
		return nil, fmt.Errorf("--dir %s: %w; give a directory that can be written", c.base, err)
	}
	f, err := os.OpenFile(c.lockFile(), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--dir %s: %w; give a directory that can be written", c.base, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another knarr dev is at work on %s; wait for it to end", c.name)
	}
	return func() { f.Close() }, nil
}

// A NodeDir is a node of a cluster and its data directory.
type NodeDir struct{ Node, Dir string }

// NodeDirs gives the nodes by their names, or all of them.
func (c *Cluster) NodeDirs(names ...string) ([]NodeDir, error) {
	s, made, err := c.load()
	if err != nil {
		return nil, err
	}
	if !made {
		return nil, c.absent()
	}
	var all, some []NodeDir
	var known []string
	for n := 1; n <= s.Nodes; n++ {
		all = append(all, NodeDir{c.node(n), c.data(n)})
		known = append(known, c.node(n))
	}
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		found := false
		for _, d := range all {
			if d.Node == name {
				some, found = append(some, d), true
			}
		}
		if !found {
			return nil, fmt.Errorf("--node %s: cluster %s has no such node; it has %s", name, c.name, strings.Join(known, ", "))
		}
	}
	return some, nil
}

func (c *Cluster) absent() error {
	return fmt.Errorf("there is no cluster %s in %s; knarr dev ls lists them, knarr dev up makes one", c.name, c.base)
}
