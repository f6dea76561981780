package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// TestAble: specs that need storage drivers are skipped, with one line, if a
// program of these is missing, and only then; those of devices need one of them.
func TestAble(t *testing.T) {
	need := []string{
		"[sig-storage] CSI Volumes [Driver: csi-hostpath] [Testpattern: Dynamic PV (default fs)] volumes should store data",
		"[sig-storage] CSI Mock volume expansion CSI Volume expansion should expand",
		"[sig-storage] StaticPods [Feature:Kind] should run after kubelet stopped with CSI volume mounted [Disruptive] [Serial]",
		"[sig-node] [DRA] kubelet [Feature:DynamicResourceAllocation] registers plugin",
	}
	others := []string{
		"[sig-node] [DRA] ResourceSlice Controller creates slices",
		"[sig-storage] CSIStorageCapacity should support CSIStorageCapacities API operations",
		"[sig-storage] VolumeAttributesClass should run through the lifecycle of a VolumeAttributesClass",
		"External Storage [Driver: local-path.knarr.io] [Testpattern: Dynamic PV (default fs)] volumes should store data",
	}
	all := slices.Concat(need, others)
	var out bytes.Buffer
	if got := (lists{}).able(&out, all, need); !slices.Equal(got[0], all) || !slices.Equal(got[1], need) || out.Len() > 0 {
		t.Errorf("with all programs: %q, %s", got, out.String())
	}
	got := lists{missing: []string{"livenessprobe", "hostpathplugin"}}.able(&out, all, need)
	if !slices.Equal(got[0], others) || len(got[1]) > 0 {
		t.Errorf("without one: %q", got)
	}
	if s := out.String(); !strings.HasPrefix(s, "8 specs ") || strings.Count(s, "\n") != 1 || !strings.Contains(s, "livenessprobe") {
		t.Errorf("said %q", s)
	}
	if got := (lists{missing: []string{"livenessprobe"}}).able(&out, need); !slices.Equal(got[0], need[3:]) {
		t.Errorf("without one that devices do not need: %q", got)
	}
	filled := need[0] + " with any volume data source [Serial]"
	if got := (lists{missing: populators}).able(&out, append([]string{filled}, need...)); !slices.Equal(got[0], need) {
		t.Errorf("without populators: %q", got)
	}
}

// TestNeedsDriver: conformance needs no storage driver, which users would have to
// build.
func TestNeedsDriver(t *testing.T) {
	names, err := readList("../passing.txt")
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(names, func(n string) bool { return drivers(n) != nil }); i >= 0 {
		t.Error(names[i])
	}
}
