package framework

import corev1 "k8s.io/api/core/v1"

// An Image is which nodes have an image.
type Image struct {
	Size  int64
	Nodes []int32 // slots
}

// Image finds an image by name, nil if no node has it.
func (c *Cluster) Image(name string) *Image { return c.images[name] }

func (c *Cluster) setImages(n *Node, old, now *corev1.Node) {
	has, had := imagesOf(now), imagesOf(old)
	for name := range had {
		if _, ok := has[name]; ok {
			continue
		}
		if i := c.images[name]; i != nil {
			i.drop(int32(n.Slot))
			if len(i.Nodes) == 0 {
				delete(c.images, name)
			}
		}
	}
	for name, size := range has {
		i := c.images[name]
		if i == nil {
			i = &Image{}
			c.images[name] = i
		}
		i.Size = size
		if _, ok := had[name]; !ok {
			i.Nodes = append(i.Nodes, int32(n.Slot))
		}
	}
}

func (i *Image) drop(slot int32) {
	for k, s := range i.Nodes {
		if s == slot {
			last := len(i.Nodes) - 1
			i.Nodes[k] = i.Nodes[last]
			i.Nodes = i.Nodes[:last]
			return
		}
	}
}

func imagesOf(n *corev1.Node) map[string]int64 {
	if n == nil || len(n.Status.Images) == 0 {
		return nil
	}
	m := make(map[string]int64, 2*len(n.Status.Images))
	for _, i := range n.Status.Images {
		for _, name := range i.Names {
			m[name] = i.SizeBytes
		}
	}
	return m
}
