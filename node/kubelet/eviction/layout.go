package eviction

import (
	"cmp"
	"slices"
)

// A Layout is which file systems the node's own files, images, and what containers write
// to their own files share.
type Layout int

// The layouts. Containers that write to a file system of their own count as those that
// write to the node's.
const (
	// Together is one for all.
	Together Layout = iota
	// ImagesApart has images and containers' files on another than the node's.
	ImagesApart
	// Split has images alone on another.
	Split
)

// LayoutOf is that of file systems of which images and containers' files have another than
// the node, and another than each other.
func LayoutOf(imagesOnNode, containersOnNode, containersWithImages bool) Layout {
	switch {
	case !containersWithImages:
		return Split
	case imagesOnNode && containersOnNode:
		return Together
	}
	return ImagesApart
}

// WithContainerFs gives containers' files the thresholds of the file system they are on.
// Those that were set for them by themselves do not count, and are named.
func WithContainerFs(all []Threshold, l Layout) (out []Threshold, ignored []Threshold) {
	like := map[string]string{NodeFsAvailable: ContainerFsAvailable, NodeFsInodesFree: ContainerFsInodesFree}
	if l == ImagesApart {
		like = map[string]string{ImageFsAvailable: ContainerFsAvailable, ImageFsInodesFree: ContainerFsInodesFree}
	}
	for _, t := range all {
		if t.Signal == ContainerFsAvailable || t.Signal == ContainerFsInodesFree {
			ignored = append(ignored, t)
			continue
		}
		out = append(out, t)
		if signal := like[t.Signal]; signal != "" {
			t.Signal = signal
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b Threshold) int {
		return cmp.Compare(slices.Index(Signals, a.Signal), slices.Index(Signals, b.Signal))
	})
	return out, ignored
}

// Takes is what of a pod counts where a signal of a disk is short: its logs and volumes,
// the files its containers wrote, and whether images that nobody uses make room. Where the
// files of containers count, those that have ended make room.
type Takes struct{ Files, Layers, Images bool }

// TakesOf is what a signal of a disk is short of.
func TakesOf(signal string, l Layout) Takes {
	image := signal == ImageFsAvailable || signal == ImageFsInodesFree
	node := signal == NodeFsAvailable || signal == NodeFsInodesFree
	switch l {
	case ImagesApart:
		return Takes{Files: node, Layers: !node, Images: !node}
	case Split:
		return Takes{Files: !image, Layers: !image, Images: image}
	}
	return Takes{Files: true, Layers: true, Images: true}
}
