package plugins

import "knarr/controlplane/scheduler/framework"

// ImageLocality prefers nodes that have the pod's images already.
type ImageLocality struct {
	cluster *framework.Cluster
	bytes   []int64 // by slot
}

var (
	_ framework.PreScore = (*ImageLocality)(nil)
	_ framework.Score    = (*ImageLocality)(nil)
)

// Images smaller than the first do not matter, and larger ones than the second
// per container make no further difference.
const (
	smallImages   = 23 << 20
	largePerImage = 1000 << 20
)

// Name is the plugin's.
func (*ImageLocality) Name() string { return "ImageLocality" }

// PreScore adds up, for nodes that have images, their sizes, scaled by how
// many nodes have them so that pods do not crowd on few.
func (l *ImageLocality) PreScore(p *framework.Pod, _ []*framework.Node) bool {
	found := false
	for _, name := range p.Images {
		i := l.cluster.Image(name)
		if i == nil {
			continue
		}
		scaled := int64(float64(i.Size) * (float64(len(i.Nodes)) / float64(l.cluster.Live)))
		if !found {
			found = true
			if len(l.bytes) < len(l.cluster.Nodes) {
				l.bytes = make([]int64, len(l.cluster.Nodes)+len(l.cluster.Nodes)/4)
			}
			clear(l.bytes)
		}
		for _, slot := range i.Nodes {
			l.bytes[slot] += scaled
		}
	}
	return !found
}

// Score is where the sum lies between small and large.
func (l *ImageLocality) Score(p *framework.Pod, n *framework.Node) int64 {
	most := largePerImage * int64(p.Containers)
	sum := min(max(l.bytes[n.Slot], smallImages), most)
	return framework.MaxScore * (sum - smallImages) / (most - smallImages)
}
