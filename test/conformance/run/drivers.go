package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"knarr/test/conformance/programs"
)

// needsDriver matches the names of specs that run images of storage drivers. Those
// of devices forward the sockets of their driver with the storage driver's program.
var needsDriver = regexp.MustCompile(`^\[sig-storage\] (CSI Volumes \[Driver: csi-hostpath\]|CSI Mock |MutableCSINodeAllocatableCount |StaticPods .*CSI volume)|` +
	`^\[sig-node\] \[DRA\] (control plane|kubelet|\[FeatureGate:DRAExtendedResource\]) `)

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

// able takes out of lots of specs those that need storage drivers, if one of their
// programs is missing, and says so.
func (l lists) able(w io.Writer, lots ...[]string) [][]string {
	if len(l.missing) == 0 {
		return lots
	}
	out, skipped := make([][]string, len(lots)), 0
	for i, lot := range lots {
		for _, n := range lot {
			if needsDriver.MatchString(n) {
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
