package containerruntime

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

const (
	// maxDiskRoom and diskRoomShare bound what no image takes of its disk: 1 GiB, or a
	// twentieth of a small one. The kubelet makes room before, but looks every ten seconds
	// only, in which a registry can fill the disk that the control plane writes to as well.
	maxDiskRoom   = 1 << 30
	diskRoomShare = 20
	// diskRoomStep is after how many bytes the disk is looked at again.
	diskRoomStep = 4 << 20
)

// A diskRoom is what there must be left of a disk.
type diskRoom struct {
	dir  string
	stat func(dir string, into *unix.Statfs_t) error
}

func diskRoomOf(dir string) diskRoom { return diskRoom{dir, unix.Statfs} }

// check refuses more bytes if they leave too little. A disk that does not answer refuses
// them itself.
func (d diskRoom) check(more int64) error {
	var s unix.Statfs_t
	if d.stat == nil || d.stat(d.dir, &s) != nil {
		return nil
	}
	block := uint64(s.Frsize)
	free, keep := s.Bavail*block, min(s.Blocks*block/diskRoomShare, maxDiskRoom)
	if free < keep || free-keep < uint64(max(more, 0)) {
		return fmt.Errorf("no room on the disk of images: %d MiB are free, of which %d are kept for the node, and %d more are needed: %w",
			free>>20, keep>>20, (uint64(max(more, 1))+1<<20-1)>>20, errdefs.ErrResourceExhausted)
	}
	if s.Files > 0 && s.Ffree < s.Files/diskRoomShare {
		return fmt.Errorf("no room on the disk of images: it can have %d more files, and keeps %d for the node: %w",
			s.Ffree, s.Files/diskRoomShare, errdefs.ErrResourceExhausted)
	}
	return nil
}

// A diskMeter looks at the disk as bytes come, first of all at the first.
type diskMeter struct {
	room diskRoom
	left int
}

func (m *diskMeter) count(n int) error {
	if m.left -= n; m.left > 0 {
		return nil
	}
	m.left = diskRoomStep
	return m.room.check(0)
}

// A roomyStore is containerd's content, which leaves room on its disk.
type roomyStore struct {
	content.Store
	room diskRoom
}

// Writer begins to write content, unless it is said to be larger than there is room for.
func (s roomyStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if err := s.room.check(o.Desc.Size); err != nil {
		return nil, err
	}
	w, err := s.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &roomyWriter{w, diskMeter{s.room, diskRoomStep}}, nil
}

type roomyWriter struct {
	content.Writer
	meter diskMeter
}

// Sync is called before the content is committed, which holds the lock of all that containerd
// knows.
func (w *roomyWriter) Sync() error {
	if s, ok := w.Writer.(content.Syncer); ok {
		return s.Sync()
	}
	return nil
}

func (w *roomyWriter) Write(p []byte) (int, error) {
	if err := w.meter.count(len(p)); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// An applier unpacks layers and compares them, as containerd's does.
type applier interface {
	diff.Applier
	diff.Comparer
}

// A roomyApplier is containerd's, which leaves room on the disk: how large a layer gets
// nobody says.
type roomyApplier struct {
	applier
	room diskRoom
}

type diskRoomKey struct{}

func (a roomyApplier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return a.applier.Apply(context.WithValue(ctx, diskRoomKey{}, a.room), desc, mounts, opts...)
}

// A roomyLayer is what a layer contains, as it is unpacked.
type roomyLayer struct {
	io.ReadCloser
	ctx   context.Context
	meter diskMeter
}

// roomy gives what a layer contains for as long as there is room, and ctx has not ended: who
// unpacks it does not look, and it may be packed so well that it never ends.
func roomy(ctx context.Context, plain io.ReadCloser) *roomyLayer {
	room, _ := ctx.Value(diskRoomKey{}).(diskRoom)
	return &roomyLayer{plain, ctx, diskMeter{room: room}}
}

func (l *roomyLayer) Read(p []byte) (int, error) {
	if l.ctx.Err() != nil {
		return 0, context.Cause(l.ctx)
	}
	n, err := l.ReadCloser.Read(p)
	if full := l.meter.count(n); full != nil {
		return 0, full
	}
	return n, err
}

// maxHole bounds the holes of a sparse file, which are written out.
const maxHole = 16 << 20

// hole is called before so many bytes are written that the layer does not contain.
func (l *roomyLayer) hole(n int64) error {
	if n > maxHole {
		return fmt.Errorf("sparse file with holes of %d bytes, larger than %d bytes: %w", n, int64(maxHole), errdefs.ErrInvalidArgument)
	}
	return l.meter.count(int(n))
}

// roomyDisk has containerd's plugins that write images leave room on the disk of dir.
func roomyDisk(p plugin.Registration, dir string) plugin.Registration {
	if p.Type != plugins.ContentPlugin && p.Type != plugins.DiffPlugin {
		return p
	}
	return replaced(p, func(_ *plugin.InitContext, theirs any) (any, error) {
		switch of := theirs.(type) {
		case content.Store:
			return roomyStore{of, diskRoomOf(dir)}, nil
		case applier:
			return roomyApplier{of, diskRoomOf(dir)}, nil
		}
		return nil, fmt.Errorf("containerd's %s is a %T", p.URI(), theirs)
	})
}
