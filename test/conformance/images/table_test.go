package main

import (
	"slices"
	"testing"

	upstream "k8s.io/kubernetes/test/utils/image"
)

// noRecipe are the images that specs name and the table does not have.
var noRecipe = map[string]string{
	"gcr.io/k8s-authenticated-test/agnhost:2.6":                                        "its registry asks who pulls",
	"invalid.registry.k8s.io/invalid/alpine:3.1":                                       "must not be there",
	"registry.k8s.io/e2e-test-images/apparmor-loader:1.4":                              "loads profiles of AppArmor, which the kernels of test machines lack",
	"registry.k8s.io/e2e-test-images/node-perf/npb-ep:1.6.0":                           "the kubelet's own suite",
	"registry.k8s.io/e2e-test-images/node-perf/npb-is:1.7.0":                           "the kubelet's own suite",
	"registry.k8s.io/e2e-test-images/node-perf/pytorch-wide-deep:1.0.0":                "the kubelet's own suite",
	"registry.k8s.io/e2e-test-images/volume/iscsi:2.7":                                 "needs the target driver of the kernel",
	"registry.k8s.io/e2e-test-images/volume/nfs:1.6.0":                                 "needs the NFS server of the kernel",
	"registry.k8s.io/sig-storage/nfs-provisioner:v4.0.8":                               "needs the NFS client of the kernel",
	"registry.k8s.io/cloud-provider-gcp/gcp-compute-persistent-disk-csi-driver:v1.4.0": "needs that cloud",
	"registry.k8s.io/sig-storage/csi-attacher:v4.8.1":                                  "needs that cloud",
	"registry.k8s.io/sig-storage/csi-provisioner:v5.2.0":                               "needs that cloud",
	"registry.k8s.io/sig-storage/csi-resizer:v1.13.1":                                  "needs that cloud",
	"registry.k8s.io/sig-storage/csi-snapshot-metadata:v0.2.0":                         "a script outside the suite installs it",
}

// TestNames: every image that specs name is in the table, under the name that
// this version of the suite gives it, or has a reason not to be.
func TestNames(t *testing.T) {
	var have []string
	for _, set := range sets {
		for _, im := range set {
			have = append(have, im.names...)
		}
	}
	named := map[string]bool{}
	for _, c := range upstream.GetImageConfigs() {
		name := c.GetE2EImage()
		named[name] = true
		if _, left := noRecipe[name]; left == slices.Contains(have, name) {
			t.Errorf("%s: either a recipe or a reason", name)
		}
	}
	for name := range noRecipe {
		if !named[name] {
			t.Errorf("no spec names %s", name)
		}
	}
}
