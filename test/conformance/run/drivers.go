package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"knarr/test/conformance/programs"
)

// needs says which programs of storage drivers specs run, by their names. Those of
// devices forward the sockets of their driver with the storage driver's program.
var needs = []struct {
	match    *regexp.Regexp
	programs []string
}{
	{regexp.MustCompile(`^\[sig-storage\] (CSI Volumes \[Driver: csi-hostpath\]|CSI Mock |MutableCSINodeAllocatableCount |StaticPods .*CSI volume)`), programs.Drivers},
	{regexp.MustCompile(`^\[sig-node\] \[DRA\] (control plane|kubelet|\[FeatureGate:DRAExtendedResource\]) `), []string{"hostpathplugin"}},
}

// drivers are the programs of storage drivers that a spec needs.
func drivers(name string) []string {
	for _, n := range needs {
		if n.match.MatchString(name) {
			return n.programs
		}
	}
	return nil
}

// missingDrivers are the programs of storage drivers that the cluster's images
// cannot be made of, if the run wants them and makes the images itself.
func missingDrivers(o options) ([]string, error) {
	if !o.beyond || o.kubeconfig != "" {
		return nil, nil
	}
	cache, err := programs.Cache("")
	if err != nil {
		return nil, err
	}
	return programs.Missing(programs.Dir(cache), programs.Drivers...), nil
}

// able takes out of lots of specs those that need a program of storage drivers that is
// missing, and says so.
func (l lists) able(w io.Writer, lots ...[]string) [][]string {
	if len(l.missing) == 0 {
		return lots
	}
	out, skipped := make([][]string, len(lots)), 0
	for i, lot := range lots {
		for _, n := range lot {
			if slices.ContainsFunc(drivers(n), func(p string) bool { return slices.Contains(l.missing, p) }) {
				skipped++
			} else {
				out[i] = append(out[i], n)
			}
		}
	}
	if skipped > 0 {
		fmt.Fprintf(w, "%d specs are skipped, since they need storage drivers and these programs are not there: %s\n", skipped, strings.Join(l.missing, " "))
	}
	return out
}
