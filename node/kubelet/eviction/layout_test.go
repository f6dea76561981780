package eviction

import (
	"slices"
	"testing"
	"time"
)

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name                         string
		images, containers, together bool
		want                         Layout
	}{
		{"one for all", true, true, true, Together},
		{"images and containers", false, false, true, ImagesApart},
		{"images alone", false, true, false, Split},
		{"each its own", false, false, false, Split},
		{"containers alone", true, false, false, Split},
	} {
		if got := LayoutOf(c.images, c.containers, c.together); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestContainerFs: containers' files have the thresholds of what they share a disk with.
func TestContainerFs(t *testing.T) {
	all, err := Parse(map[string]string{"nodefs.available": "10%", "imagefs.available": "15%", "nodefs.inodesFree": "5%", "containerfs.available": "1%"},
		map[string]string{"imagefs.available": "20%"}, map[string]string{"imagefs.available": "1m"}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for l, want := range map[Layout][]Threshold{
		Together:    {{Signal: ContainerFsAvailable, Value: Amount{Part: 0.1}}, {Signal: ContainerFsInodesFree, Value: Amount{Part: 0.05}}},
		Split:       {{Signal: ContainerFsAvailable, Value: Amount{Part: 0.1}}, {Signal: ContainerFsInodesFree, Value: Amount{Part: 0.05}}},
		ImagesApart: {{Signal: ContainerFsAvailable, Value: Amount{Part: 0.15}}, {Signal: ContainerFsAvailable, Value: Amount{Part: 0.2}, Grace: time.Minute}},
	} {
		out, ignored := WithContainerFs(all, l)
		got := slices.DeleteFunc(slices.Clone(out), func(t Threshold) bool { return t.Signal != ContainerFsAvailable && t.Signal != ContainerFsInodesFree })
		if !slices.Equal(got, want) || len(out) != len(all)-1+len(want) || len(ignored) != 1 {
			t.Errorf("%v: %+v, ignored %+v", l, out, ignored)
		}
	}
}

func TestTakes(t *testing.T) {
	everything, files, layers, split, images := Takes{true, true, true}, Takes{Files: true}, Takes{Layers: true, Images: true}, Takes{Files: true, Layers: true}, Takes{Images: true}
	for _, c := range []struct {
		layout                 Layout
		node, image, container Takes
	}{
		{Together, everything, everything, everything},
		{ImagesApart, files, layers, layers},
		{Split, split, images, split},
	} {
		for signal, want := range map[string]Takes{NodeFsAvailable: c.node, NodeFsInodesFree: c.node, ImageFsAvailable: c.image, ImageFsInodesFree: c.image,
			ContainerFsAvailable: c.container, ContainerFsInodesFree: c.container} {
			if got := TakesOf(signal, c.layout); got != want {
				t.Errorf("%v, %s: %+v, want %+v", c.layout, signal, got, want)
			}
		}
	}
}
