package cgroup

import (
	"path"
	"strings"
)

// slice ends the names of systemd's groups of units.
const slice = ".slice"

// IsSlice says whether a path is that of a slice of systemd's.
func IsSlice(name string) bool { return strings.HasSuffix(name, slice) }

// SlicePath is where systemd has the group that is called so without it: /kubepods/burstable
// is /kubepods.slice/kubepods-burstable.slice. A dash would mean one more level, and is "_"
// in a slice's name. Names and paths are upstream's.
func SlicePath(name string) string {
	dir := "/"
	for part := range strings.SplitSeq(name, "/") {
		if part == "" {
			continue
		}
		if dir == "/" {
			dir += escape(part) + slice
		} else {
			dir = Child(dir, part)
		}
	}
	return dir
}

// Child is the path of the group below another: a slice, if that is one.
func Child(parent, part string) string {
	if !IsSlice(parent) {
		return path.Join(parent, part)
	}
	return path.Join(parent, strings.TrimSuffix(path.Base(parent), slice)+"-"+escape(part)+slice)
}

// ReservedSlice is the path of a slice that a setting names, with or without the slices
// above it: these are in its name.
func ReservedSlice(setting string) string {
	return SlicePath(strings.ReplaceAll(strings.TrimSuffix(path.Base(setting), slice), "-", "/"))
}

// ContainerGroup is the path of a container's group below its pod's. In a slice it is a
// scope, which has the name that the runtime gives it.
func ContainerGroup(pod, runtime, id string) string {
	if !IsSlice(pod) {
		return path.Join(pod, id)
	}
	prefix := "cri-containerd"
	if runtime == "cri-o" {
		prefix = "crio"
	}
	return path.Join(pod, prefix+"-"+id+".scope")
}

func escape(part string) string { return strings.ReplaceAll(part, "-", "_") }
