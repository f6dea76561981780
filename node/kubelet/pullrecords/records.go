// Package pullrecords remembers which images the kubelet pulled and with whose
// credentials, so that an image in the node's store is given only to pods that
// could have pulled it. It reads and writes one small file for each image and
// each pull under way below the kubelet's image_manager directory, in upstream's
// format, and nothing else.
package pullrecords

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/statefile"
)

// The wire format is kubelet.config.k8s.io/v1beta1. It is written down here,
// because upstream's package brings the configuration of a whole kubelet along.

// An intent says that the kubelet is about to pull an image. Found at the
// start, it says that the pull may have succeeded without a record.
type intent struct {
	metav1.TypeMeta
	Image string `json:"image"`
}

// A record says that the kubelet pulled an image.
type record struct {
	metav1.TypeMeta
	LastUpdatedTime metav1.Time `json:"lastUpdatedTime"`
	ImageRef        string      `json:"imageRef"`
	// CredentialMapping is by image name without tag and digest.
	CredentialMapping map[string]Credentials `json:"credentialMapping,omitempty"`
}

// Credentials are those an image was pulled with.
type Credentials struct {
	KubernetesSecrets         []Secret         `json:"kubernetesSecrets,omitempty"`
	KubernetesServiceAccounts []ServiceAccount `json:"kubernetesServiceAccounts,omitempty"`
	// NodePodsAccessible: the pull needed no credentials, or those of the node.
	NodePodsAccessible bool `json:"nodePodsAccessible,omitempty"`
}

// A Secret is where credentials came from and the hash of what they were.
type Secret struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	CredentialHash string `json:"credentialHash"`
}

// A ServiceAccount is one whose token got credentials from a plugin.
type ServiceAccount struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

const (
	apiGroup   = "kubelet.config.k8s.io/"
	apiVersion = apiGroup + "v1beta1"
	filePrefix = "sha256-"
)

// A Store keeps the records.
type Store struct {
	// Policy says who has to show that they may have an image; nil: whoever wants one that
	// the kubelet pulled.
	Policy Policy
	// Checked is told how each check of MustPull ended; nil: nobody is.
	Checked func(result string)

	pulling, pulled string

	mu sync.Mutex
	// underway counts the pulls of an image that have not ended.
	underway map[string]int
}

// Open returns the records below the kubelet's root directory.
func Open(root string) (*Store, error) {
	s := &Store{
		pulling:  filepath.Join(root, "image_manager", "pulling"),
		pulled:   filepath.Join(root, "image_manager", "pulled"),
		underway: map[string]int{},
	}
	for _, dir := range []string{s.pulling, s.pulled} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of pull records: %w", err)
		}
	}
	return s, nil
}

// An Image is one that the runtime holds.
type Image struct {
	ID    string
	Names []string // tags and digests
}

// Recover turns intents that an earlier run left into records without
// credentials for the images that are there, so that whoever wants one of them
// has to show that it may.
func (s *Store) Recover(images []Image) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := map[string]string{}
	for _, i := range images {
		for _, name := range i.Names {
			byName[normal(name)] = i.ID
		}
	}
	var errs []error
	errs = append(errs, eachFile(s.pulling, func(path string) error {
		in, err := readIntent(path)
		if err != nil {
			return err
		}
		id := byName[normal(in.Image)]
		if id == "" || s.underway[in.Image] > 0 {
			return nil
		}
		if err := s.merge(in.Image, id, nil); err != nil {
			return err
		}
		return remove(s.pulling, in.Image)
	}))
	return errors.Join(errs...)
}

// Begin notes that image is about to be pulled. Each Begin is followed by one
// Succeed, Fail or GiveUp.
func (s *Store) Begin(image string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := intent{metav1.TypeMeta{Kind: "ImagePullIntent", APIVersion: apiVersion}, image}
	if err := write(s.pulling, image, in); err != nil {
		return err
	}
	s.underway[image]++
	return nil
}

// Succeed notes that image was pulled as id with these credentials. If that
// cannot be written the intent stays, which also says that the kubelet pulled it.
func (s *Store) Succeed(image, id string, used Credentials) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.merge(image, id, &used); err != nil {
		return err
	}
	return s.end(image)
}

// Fail notes that a pull of image did not succeed.
func (s *Store) Fail(image string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(image)
}

// GiveUp notes that nobody knows how a pull of image ended. The intent stays: should the image
// be there, whoever wants it has to show that it may.
func (s *Store) GiveUp(image string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underway[image]--; s.underway[image] <= 0 {
		delete(s.underway, image)
	}
	return nil
}

func (s *Store) end(image string) error {
	if s.underway[image] > 1 {
		s.underway[image]--
		return nil
	}
	delete(s.underway, image)
	return remove(s.pulling, image)
}

// Presented is what a pod has to pull images with.
type Presented struct {
	Secrets []Secret
	// ServiceAccount is the pod's, if a plugin gives credentials for its token.
	ServiceAccount *ServiceAccount
}

// How a check ended, in upstream's words.
const (
	policyAllowed    = "credentialPolicyAllowed"
	recordFound      = "credentialRecordFound"
	mustAuthenticate = "mustAuthenticate"
	failed           = "error"
)

// MustPull says whether a pod that asks for image, which the runtime holds as
// id, has to pull it to show that it may have it. present is what the pod could
// pull it with; it may take a while and is asked only if that matters.
func (s *Store) MustPull(image, id string, present func() Presented) bool {
	result := s.check(image, id, present)
	if s.Checked != nil {
		s.Checked(result)
	}
	return result != policyAllowed && result != recordFound
}

func (s *Store) check(image, id string, present func() Presented) (result string) {
	known, pulled, err := s.known(image, id)
	switch {
	case err != nil:
		slog.Warn("read the record of an image, which is verified anew", "image", image, "err", err)
		return failed
	case !s.policy()(image, pulled):
		return policyAllowed
	case known == nil:
		return mustAuthenticate
	}
	allowed, learn := verify(*known, present)
	if learn != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.merge(image, id, &Credentials{KubernetesSecrets: []Secret{*learn}}); err != nil {
			slog.Warn("write the record of an image", "image", image, "err", err)
		}
	}
	if !allowed {
		return mustAuthenticate
	}
	return recordFound
}

// Sizes are how many pulls that have not ended, and how many that have, are on disk.
func (s *Store) Sizes() (pulling, pulled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := func(n *int) func(string) error { return func(string) error { *n++; return nil } }
	_ = eachFile(s.pulling, count(&pulling))
	_ = eachFile(s.pulled, count(&pulled))
	return pulling, pulled
}

func (s *Store) policy() Policy {
	if s.Policy == nil {
		return neverPreloaded
	}
	return s.Policy
}

// Public says whether everybody may have image, which the runtime holds as id: it was
// pulled without credentials of a pod, or loaded onto the node and need not be verified.
// Other nodes ask by an image's full name, while records and intents have, as upstream's do,
// what pods call it: here all names of one repository are the same.
func (s *Store) Public(image, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.read(id)
	switch {
	case err != nil:
		return false
	case r == nil:
		return !s.intended(image) && !s.policy()(image, false)
	}
	repository := fullName(image)
	for name, c := range r.CredentialMapping {
		if c.NodePodsAccessible && fullName(name) == repository {
			return true
		}
	}
	return false
}

// intended says whether a pull of an image is under way, or did not get to its record,
// whatever the pod called it.
func (s *Store) intended(image string) bool {
	found := false
	err := eachFile(s.pulling, func(path string) error {
		in, err := readIntent(path)
		if err == nil {
			found = found || normal(in.Image) == normal(image)
		}
		return err
	})
	return found || err != nil && !errors.Is(err, fs.ErrNotExist) // who knows what a damaged one is about
}

// known are the credentials an image was pulled with, nil where there is no record of it
// under this name; pulled says whether the kubelet pulled it, or may have.
func (s *Store) known(image, id string) (known *Credentials, pulled bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.read(id)
	if err != nil {
		return nil, true, err
	}
	if r == nil {
		// Not the kubelet's: loaded onto the node, unless a pull of it is under way or did
		// not get to its record.
		return nil, s.underway[image] > 0 || exists(s.pulling, image), nil
	}
	if c, ok := r.CredentialMapping[baseName(image)]; ok {
		known = &c
	}
	return known, true, nil
}

// Prune forgets the images that are not among ids, a list asked for at since or
// later.
func (s *Store) Prune(ids []string, since time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Times on disk are whole seconds.
	since = since.Truncate(time.Second)
	return eachFile(s.pulled, func(path string) error {
		r, err := readRecord(path)
		if err != nil {
			return err
		}
		if !r.LastUpdatedTime.Time.Before(since) || slices.Contains(ids, r.ImageRef) {
			return nil
		}
		return remove(s.pulled, r.ImageRef)
	})
}

// merge adds credentials to the record of an image; nil: it only has one.
func (s *Store) merge(image, id string, used *Credentials) error {
	r, err := s.read(id)
	if err != nil {
		slog.Warn("replace a damaged record of an image", "image", image, "err", err)
	}
	fresh := r == nil
	if fresh {
		r = &record{TypeMeta: metav1.TypeMeta{Kind: "ImagePulledRecord", APIVersion: apiVersion}, ImageRef: id}
	}
	if !r.add(baseName(image), used) && !fresh {
		return nil
	}
	r.TypeMeta.APIVersion, r.LastUpdatedTime = apiVersion, metav1.Now()
	return write(s.pulled, id, r)
}

// read returns the record of an image, nil if there is none.
func (s *Store) read(id string) (*record, error) {
	r, err := readRecord(filepath.Join(s.pulled, fileName(id)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if r.ImageRef != id {
		return nil, fmt.Errorf("the record of %s is about %q", id, r.ImageRef)
	}
	return r, nil
}

func readRecord(path string) (*record, error) {
	r := &record{}
	if err := statefile.Read(path, r); err != nil {
		return nil, err
	}
	return r, checkType(r.TypeMeta, "ImagePulledRecord")
}

func readIntent(path string) (*intent, error) {
	in := &intent{}
	if err := statefile.Read(path, in); err != nil {
		return nil, err
	}
	return in, checkType(in.TypeMeta, "ImagePullIntent")
}

func checkType(t metav1.TypeMeta, kind string) error {
	if t.Kind != kind || !strings.HasPrefix(t.APIVersion, apiGroup) {
		return fmt.Errorf("a %s of %s is not an %s", t.Kind, t.APIVersion, kind)
	}
	return nil
}

// fileName keeps what users call images out of paths.
func fileName(key string) string { return fmt.Sprintf("%s%x", filePrefix, sha256.Sum256([]byte(key))) }

func exists(dir, key string) bool {
	_, err := os.Lstat(filepath.Join(dir, fileName(key)))
	return err == nil
}

func remove(dir, key string) error {
	if err := os.Remove(filepath.Join(dir, fileName(key))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a pull record: %w", err)
	}
	return nil
}

// write replaces a file as a whole. It is on disk before the image counts as
// pulled: a record lost with the power would leave the image to everybody.
func write(dir, key string, v any) error {
	err := statefile.Write(filepath.Join(dir, fileName(key)), v, true)
	if errors.Is(err, fs.ErrNotExist) { // who cleaned up has taken the directory too: no image could be pulled any more
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = statefile.Write(filepath.Join(dir, fileName(key)), v, true)
		}
	}
	if err != nil {
		return fmt.Errorf("write a pull record: %w", err)
	}
	return nil
}

// eachFile calls f with every record of a directory; a bad one does not keep
// the others from their turn.
func eachFile(dir string, f func(path string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filePrefix) || strings.HasSuffix(e.Name(), statefile.TmpSuffix) || !e.Type().IsRegular() {
			continue
		}
		if err := f(filepath.Join(dir, e.Name())); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// normal is an image's full name.
func normal(image string) string {
	n, err := reference.ParseDockerRef(image)
	if err != nil {
		return image
	}
	return n.String()
}

// fullName is an image's full name without tag and digest.
func fullName(image string) string {
	n, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return n.Name()
}

// baseName is an image's name without tag and digest, otherwise as the user
// wrote it.
func baseName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image
}
