package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"knarr/node/cni/network"
)

// Firewalls of iptables-legacy are in tables of the kernel that nftables does not show.
// The host's own program reads and changes them: if there is a table there has been one,
// and a machine without any is never asked, which would make the kernel have them.

// legacyLimit is how long one start of the program may take, with the five seconds that
// it waits for another one.
const legacyLimit = 15 * time.Second

// A legacyFilter is the table filter of one family.
type legacyFilter struct {
	program string // that others call so
	v6      bool
}

// legacyFilters are those that this machine has.
func legacyFilters() (filters []legacyFilter) {
	for _, f := range []struct {
		names string
		legacyFilter
	}{{"ip_tables_names", legacyFilter{"iptables", false}}, {"ip6_tables_names", legacyFilter{"ip6tables", true}}} {
		names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
		if err == nil && slices.Contains(strings.Fields(string(names)), "filter") {
			filters = append(filters, f.legacyFilter)
		}
	}
	return filters
}

// run starts the host's program for the older tables with these words.
func (f legacyFilter) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), legacyLimit)
	defer cancel()
	program := f.program + "-legacy"
	if _, err := exec.LookPath(program); err != nil {
		program = f.program // of a host that has no other, unless it is that of nftables
		out, err := exec.CommandContext(ctx, program, "--version").Output()
		if err != nil || bytes.Contains(out, []byte("nf_tables")) {
			return "", fmt.Errorf("the kernel holds a table filter of %s-legacy, and there is no such program to see whether it lets pods through: install it, or unload the module %s_filter", f.program, strings.Replace(f.program, "tables", "table", 1))
		}
	}
	c := exec.CommandContext(ctx, program, append([]string{"-w", "5"}, args...)...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		text := strings.Join(strings.Fields(stderr.String()), " ")
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, text[:min(len(text), 500)])
	}
	return string(out), nil
}

// admitLegacy makes the rules be in the older tables' chains that need them, as admit does
// in those of nftables.
func admitLegacy(c Config, n *network.Conf) error {
	var errs []error
	for _, f := range legacyFilters() {
		for _, chain := range []string{"FORWARD", "INPUT"} {
			rules := legacyAdmission(n, c.DNSPort, chain, f.v6)
			if len(rules) == 0 {
				continue
			}
			listing, err := f.run("-S", chain)
			if err != nil {
				errs = append(errs, err)
				break
			}
			dropping, have := readLegacy(listing, chain, n.Table)
			if !dropping || len(have) >= len(rules) {
				continue
			}
			// Some, if an earlier round came to its end between two.
			errs = append(errs, f.remove(have))
			for _, rule := range rules {
				_, err := f.run(append([]string{"-I", chain}, rule...)...)
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// withdrawLegacy takes the rules of a table's pods out again.
func withdrawLegacy(table string) error {
	var errs []error
	for _, f := range legacyFilters() {
		for _, chain := range []string{"FORWARD", "INPUT"} {
			listing, err := f.run("-S", chain)
			if err != nil { // without the program there can be none of ours
				break
			}
			_, have := readLegacy(listing, chain, table)
			errs = append(errs, f.remove(have))
		}
	}
	return errors.Join(errs...)
}

func (f legacyFilter) remove(rules [][]string) error {
	var errs []error
	for _, rule := range rules {
		_, err := f.run(append([]string{"-D"}, rule...)...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readLegacy reads what -S lists: whether the chain drops what no rule of it accepts, and
// the rules of a table's pods, each as a chain and what follows it. Pure.
func readLegacy(listing, chain, table string) (dropping bool, ours [][]string) {
	for line := range strings.Lines(listing) {
		words := strings.Fields(line)
		if len(words) < 3 || words[1] != chain {
			continue
		}
		i := slices.Index(words, "--comment")
		switch {
		case words[0] == "-P":
			dropping = words[2] == "DROP"
		case words[0] == "-A" && i >= 0 && i+1 < len(words) && words[i+1] == table:
			ours = append(ours, words[1:])
		}
	}
	return dropping, ours
}

// legacyAdmission are the rules that a chain of one family needs, as words. Pure.
func legacyAdmission(n *network.Conf, dns uint16, chain string, v6 bool) (rules [][]string) {
	accept := func(match ...string) {
		rules = append(rules, append(match, "-m", "comment", "--comment", n.Table, "-j", "ACCEPT"))
	}
	if chain == "FORWARD" {
		for _, p := range n.ClusterCIDRs {
			if p.Addr().Is6() == v6 {
				accept("-s", p.String())
				accept("-d", p.String())
			}
		}
		return rules
	}
	for _, p := range n.PodCIDRs {
		if p.Addr().Is6() != v6 || dns == 0 {
			continue
		}
		at := p.Masked().Addr().Next()
		for _, proto := range []string{"udp", "tcp"} {
			accept("-i", n.Bridge, "-d", netip.PrefixFrom(at, at.BitLen()).String(), "-p", proto, "--dport", strconv.Itoa(int(dns)))
		}
	}
	return rules
}
