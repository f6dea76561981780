package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// programs are those of one family.
type programs struct{ save, restoreCommand string }

// A kind is which of the two kinds of iptables this host has.
type kind struct{ v4, v6 programs }

func (k kind) of(v6 bool) programs {
	if v6 {
		return k.v6
	}
	return k.v4
}

// limit bounds one run of a program: 30,000 Services take some seconds.
const limit = 2 * time.Minute

// errMissing is for hosts without iptables.
var errMissing = errors.New("--proxy-mode iptables: this host has no iptables-restore; install iptables, or use --proxy-mode nftables")

// find takes the host's iptables, or that of the other kind where the kernel does not
// know the first one's.
func find() (kind, error) {
	var errs []error
	for _, of := range []string{"", "nft-", "legacy-"} {
		k := kind{
			programs{"iptables-" + of + "save", "iptables-" + of + "restore"},
			programs{"ip6tables-" + of + "save", "ip6tables-" + of + "restore"},
		}
		if _, err := exec.LookPath(k.v4.restoreCommand); err != nil {
			continue
		}
		err := k.v4.restore("*nat\nCOMMIT\n*filter\nCOMMIT\n")
		if err == nil {
			return k, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return kind{}, errMissing
	}
	return kind{}, fmt.Errorf("--proxy-mode iptables: %w", errors.Join(errs...))
}

// A lineError is what iptables-restore says of one line.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return e.err.Error() }
func (e *lineError) Unwrap() error { return e.err }

var lineNumber = regexp.MustCompile(`line:? (\d+)`)

// restore writes tables as one transaction each, and leaves all chains that it does not name.
func (p programs) restore(input string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, p.restoreCommand, "--noflush", "-w", "10")
	c.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	err := c.Run()
	if err == nil {
		return nil
	}
	text := strings.Join(strings.Fields(stderr.String()), " ")
	err = fmt.Errorf("%s: %w: %s", p.restoreCommand, err, text[:min(len(text), 500)])
	if m := lineNumber.FindStringSubmatch(text); m != nil {
		if n, perr := strconv.Atoi(m[1]); perr == nil && n > 0 {
			return &lineError{n, err}
		}
	}
	return err
}

// What the kernel has of ours.
type present struct {
	chains map[string]bool // of table nat
	// rules are those of the kernel's own chains that lead to ours, by table and chain.
	rules map[string]int
}

// read asks for the chains with our prefix, and the ways into them.
func (f *family) read() (present, error) {
	have := present{map[string]bool{}, map[string]int{}}
	for _, table := range []string{"nat", "filter"} {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		out, err := exec.CommandContext(ctx, f.save, "-t", table).Output()
		cancel()
		if err != nil {
			return have, fmt.Errorf("%s: %w", f.save, err)
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			switch {
			case table == "nat" && len(fields) > 0 && strings.HasPrefix(fields[0], ":"+f.state.names.prefix):
				have.chains[fields[0][1:]] = true
			case len(fields) > 3 && fields[0] == "-A" && !strings.HasPrefix(fields[1], f.state.names.prefix) && strings.HasPrefix(fields[len(fields)-1], f.state.names.prefix):
				have.rules[way(table, fields[1], fields[len(fields)-1])]++
			}
		}
	}
	return have, nil
}

func way(table, from, to string) string { return table + " " + from + " " + to }

// missing are the hooks that are not there.
func (have present) missing(hooks []hook) (none []hook) {
	for _, h := range hooks {
		if have.rules[way(h.table, h.chain, h.rule[strings.LastIndexByte(h.rule, ' ')+1:])] == 0 {
			none = append(none, h)
		}
	}
	return none
}

// remove deletes the ways into our chains, and the chains.
func (f *family) remove() error {
	have, err := f.read()
	if err != nil {
		return err
	}
	if len(have.chains) == 0 && len(have.rules) == 0 {
		return nil
	}
	n := f.state.names
	var b strings.Builder
	for _, t := range []struct {
		table  string
		chains []string
	}{{"filter", []string{n.top(), n.nodePorts(), n.forward()}}, {"nat", slices.Sorted(maps.Keys(have.chains))}} {
		fmt.Fprintf(&b, "*%s\n", t.table)
		for _, c := range t.chains {
			fmt.Fprintf(&b, ":%s - [0:0]\n", c)
		}
		for _, h := range n.hooks() {
			if h.table == t.table && have.rules[way(h.table, h.chain, h.rule[strings.LastIndexByte(h.rule, ' ')+1:])] > 0 {
				fmt.Fprintf(&b, "-D %s %s\n", h.chain, h.rule)
			}
		}
		for _, c := range t.chains {
			fmt.Fprintf(&b, "-X %s\n", c)
		}
		b.WriteString("COMMIT\n")
	}
	return f.restore(b.String())
}
