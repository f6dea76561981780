package containerruntime

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCheckpoint: the state of a container, its memory with it, is written to a file, and it
// goes on as if nothing had been.
func TestCheckpoint(t *testing.T) {
	if os.Getenv("KNARR_ISOLATED") == "" { // it wants a link
		needCRIU(t)
	}
	if isolated(t) {
		return
	}
	n := newNode(t)
	// What it keeps in memory is found in the file; it is not in the command.
	_, container := n.shell(t, "kept", `word=$(echo Znynprn | tr N-ZA-Mn-za-m A-Za-z); i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done`)
	n.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
	// The pause process of its pod is the first.
	pid := n.exec(t, container, "/bin/busybox", "cat", "/proc/2/stat")
	for range 2 { // one leaves nothing that is in the next one's way
		archive := filepath.Join(t.TempDir(), "checkpoint.tar")
		if _, err := n.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: container, Location: archive, Timeout: 120}); err != nil {
			t.Fatal(err)
		}
		names, found := inArchive(t, archive, "Malacea")
		for _, want := range []string{"config.dump", "spec.dump", "checkpoint/inventory.img", "checkpoint/core-2.img", "checkpoint/pages-1.img", "checkpoint/descriptors.json"} {
			if !slices.Contains(names, want) {
				t.Errorf("no %s among %q", want, names)
			}
		}
		if !found {
			t.Error("the memory of its process is not there")
		}
		info, err := os.Stat(archive)
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may read it: %v, %v", info, err)
		}
	}
	if now := n.exec(t, container, "/bin/busybox", "cat", "/proc/2/stat"); field(now, 21) != field(pid, 21) {
		t.Errorf("its process was begun anew: %s, before %s", now, pid)
	}
	res, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: container})
	if err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		info, err := os.Stat(res.Status.LogPath)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	for until := time.Now().Add(20 * time.Second); size() == before; <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it writes nothing more")
		}
	}
}

func needCRIU(t *testing.T) {
	t.Helper()
	out, err := exec.Command("criu", "check").CombinedOutput()
	if why := "needs CRIU, of a version for this kernel: make vm: "; err != nil && os.Getenv("KNARR_GUEST") != "" {
		t.Fatal(why, err, "\n", string(out))
	} else if err != nil {
		t.Skip(why, err, "\n", string(out))
	}
}

// field gives a field of words.
func field(words string, number int) string {
	return append(strings.Fields(words), make([]string, number+1)...)[number]
}

// inArchive lists what is in an archive, and says whether a word is in one of the files.
func inArchive(t *testing.T, path, word string) (names []string, found bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, found
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found = found || strings.Contains(string(b), word)
	}
}

// TestNoCheckpoint: where there is no CRIU the error says so, and the container is left alone.
func TestNoCheckpoint(t *testing.T) {
	if isolated(t) {
		return
	}
	t.Setenv("PATH", t.TempDir())
	n := newNode(t)
	_, container := n.shell(t, "kept", "exec sleep 1000")
	n.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
	archive := filepath.Join(t.TempDir(), "checkpoint.tar")
	_, err := n.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: container, Location: archive})
	if err == nil || !strings.Contains(err.Error(), "criu binary not found") {
		t.Error(err)
	}
	if _, err := os.Stat(archive); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file: %v", err)
	}
	n.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
}

// TestNoRestore: no container is begun from the checkpoint of another, even where CRIU is.
func TestNoRestore(t *testing.T) {
	if isolated(t) {
		return
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "criu"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	n := newNode(t)
	ctx := namespaces.WithNamespace(t.Context(), imageNamespace)
	client, err := containerd.NewWithConn(n.conn)
	if err != nil {
		t.Fatal(err)
	}
	ctx, done, err := client.WithLease(ctx) // what nothing refers to yet may be collected at any time
	if err != nil {
		t.Fatal(err)
	}
	defer done(context.WithoutCancel(ctx))
	image, err := client.ImageService().Get(ctx, DefaultSandboxImage)
	if err != nil {
		t.Fatal(err)
	}
	known, err := n.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: DefaultSandboxImage}})
	if err != nil {
		t.Fatal(err)
	}
	// The kubelet names images by their ids.
	if _, _, err := n.podOf(t.Context(), "plain", known.Image.Id); err != nil {
		t.Errorf("an image by its id: %v", err)
	}
	if _, _, err := n.podOf(t.Context(), "absent", "knarr.test/absent:1"); status.Code(err) != codes.NotFound {
		t.Errorf("an image that is not there: %v", err)
	}
	b, err := content.ReadBlob(ctx, client.ContentStore(), image.Target)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	m["annotations"] = map[string]string{checkpointAnnotation: "web"}
	if b, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	image.Target.Digest, image.Target.Size = digest.FromBytes(b), int64(len(b))
	if err := content.WriteBlob(ctx, client.ContentStore(), "checkpoint", bytes.NewReader(b), image.Target); err != nil {
		t.Fatal(err)
	}
	image.Name = "knarr.test/checkpoint:1"
	if _, err := client.ImageService().Create(ctx, image); err != nil {
		t.Fatal(err)
	}
	// The CRI hears of it by and by. The kubelet names it by its id, which is that of its
	// configuration, the same as the other's.
	for until := time.Now().Add(20 * time.Second); ; <-time.After(5 * time.Millisecond) {
		now, err := n.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: known.Image.Id}})
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(now.Image.RepoTags, image.Name) {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the CRI does not know it: %v", now.Image)
		}
	}
	_, _, err = n.podOf(t.Context(), "restored", known.Image.Id)
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is the checkpoint of a container") {
		t.Error(err)
	}
}

func TestIsCheckpoint(t *testing.T) {
	for manifest, want := range map[string]bool{
		`{"annotations": {"org.criu.checkpoint.container.name": "web"}}`: true,
		`{"annotations": {"org.opencontainers.image.title": "web"}}`:     false,
		`{}`: false, `no manifest`: false,
	} {
		if got := isCheckpoint([]byte(manifest)); got != want {
			t.Errorf("%s: %v", manifest, got)
		}
	}
}
