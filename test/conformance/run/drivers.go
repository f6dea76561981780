package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"knarr/test/conformance/programs"
)

// populators are the programs that fill volumes from sources of any kind, and
// snapshotters those that take snapshots.
var (
	populators   = []string{"hello-populator", "volume-data-source-validator"}
	snapshotters = []string{"csi-snapshotter", "snapshot-controller"}
)

// needs says which programs of storage drivers specs run, by their names. Those of
// devices forward the sockets of their driver with the storage driver's program.
var needs = []struct {
	match    *regexp.Regexp
	programs []string
}{
	{regexp.MustCompile(`any volume data source`), programs.Drivers},
	{regexp.MustCompile(`^\[sig-storage\] (CSI Volumes \[Driver: csi-hostpath\]|CSI Mock |MutableCSINodeAllocatableCount |StaticPods .*CSI volume)`), slices.DeleteFunc(slices.Clone(programs.Drivers), func(p string) bool { return slices.Contains(populators, p) })},
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

// lacks says whether one of these programs is missing.
func (l lists) lacks(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(l.missing, n) })
}

// able takes out of lots of specs those that need a program of storage drivers that is
// missing. The error says so: a run that chose such specs has not run what it was to run,
// and fails once the others are done.
func (l lists) able(lots ...[]string) ([][]string, error) {
	if len(l.missing) == 0 {
		return lots, nil
	}
	out, cannot := make([][]string, len(lots)), 0
	for i, lot := range lots {
		for _, n := range lot {
			if l.lacks(drivers(n)) {
				cannot++
			} else {
				out[i] = append(out[i], n)
			}
		}
	}
	if cannot == 0 {
		return out, nil
	}
	return out, fmt.Errorf("%d specs did not run, since they need images of storage drivers whose programs are not there: %s; README.md says where to put them, or leave the specs out by -skip", cannot, strings.Join(l.missing, " "))
}
