package main

import (
	"slices"
	"strings"
	"testing"

	"knarr/test/conformance/programs"
)

// TestAble: specs that need storage drivers are left out and fail the run, with one line,
// if a program of these is missing, and only then; those of devices need one of them.
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
	if got, err := (lists{}).able(all, need); !slices.Equal(got[0], all) || !slices.Equal(got[1], need) || err != nil {
		t.Errorf("with all programs: %q, %v", got, err)
	}
	got, err := lists{missing: []string{"livenessprobe", "hostpathplugin"}}.able(all, need)
	if !slices.Equal(got[0], others) || len(got[1]) > 0 {
		t.Errorf("without one: %q", got)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "8 specs did not run") || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "livenessprobe hostpathplugin") {
		t.Errorf("said %v", err)
	}
	if _, err := (lists{missing: programs.Drivers}).able(others); err != nil {
		t.Errorf("specs that need none: %v", err)
	}
	if got, _ := (lists{missing: []string{"livenessprobe"}}).able(need); !slices.Equal(got[0], need[3:]) {
		t.Errorf("without one that devices do not need: %q", got)
	}
	filled := need[0] + " with any volume data source [Serial]"
	if got, _ := (lists{missing: populators}).able(append([]string{filled}, need...)); !slices.Equal(got[0], need) {
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
