package pullrecords

import (
	"cmp"
	"maps"
	"slices"
)

// Tenants make secrets and names of images: a record takes so many of them.
// Beyond that each further one is verified by a pull every time.
const (
	maxSecrets = 1000
	// maxLearned bounds what is written without a pull.
	maxLearned = 100
	maxNames   = 1000
)

// verify says whether one of a pod's secrets is among those known to be right, or
// its service account is. The same credentials count wherever they lie, and a
// secret that was right counts after it changed: its owner may rotate it. learn
// is what should be known from now on.
func verify(known Credentials, present func() Presented) (allowed bool, learn *Secret) {
	if known.NodePodsAccessible {
		return true, nil
	}
	if len(known.KubernetesSecrets) == 0 && len(known.KubernetesServiceAccounts) == 0 {
		return false, nil
	}
	p := present()
	for _, have := range p.Secrets {
		for _, k := range known.KubernetesSecrets {
			sameHash := k.CredentialHash != "" && k.CredentialHash == have.CredentialHash
			samePlace := k.place() == have.place()
			if !sameHash && !samePlace {
				continue
			}
			if len(known.KubernetesSecrets) >= maxLearned {
				if sameHash {
					return true, nil
				}
				continue
			}
			if sameHash && samePlace {
				return true, nil
			}
			return true, &have
		}
	}
	return p.ServiceAccount != nil && slices.Contains(known.KubernetesServiceAccounts, *p.ServiceAccount), nil
}

type place struct{ namespace, name, uid string }

func (s Secret) place() place { return place{s.Namespace, s.Name, s.UID} }

// add notes credentials of a name and says whether they are new.
func (r *record) add(name string, used *Credentials) bool {
	if used == nil || !used.NodePodsAccessible && len(used.KubernetesSecrets) == 0 && len(used.KubernetesServiceAccounts) == 0 {
		return false
	}
	if r.CredentialMapping == nil {
		r.CredentialMapping = map[string]Credentials{}
	}
	known, ok := r.CredentialMapping[name]
	if !ok && len(r.CredentialMapping) >= maxNames || known.NodePodsAccessible {
		return false
	}
	if used.NodePodsAccessible {
		r.CredentialMapping[name] = Credentials{NodePodsAccessible: true}
		return true
	}
	secrets := known.addSecrets(used.KubernetesSecrets)
	accounts := known.addAccounts(used.KubernetesServiceAccounts)
	if !secrets && !accounts && ok {
		return false
	}
	r.CredentialMapping[name] = known
	return true
}

// addSecrets notes secrets and says whether one of them is new or has changed.
func (c *Credentials) addSecrets(used []Secret) (changed bool) {
	hashes := map[place]string{}
	for _, s := range c.KubernetesSecrets {
		hashes[s.place()] = s.CredentialHash
	}
	for _, s := range used {
		have, ok := hashes[s.place()]
		if ok && have == s.CredentialHash || !ok && len(hashes) >= maxSecrets {
			continue
		}
		hashes[s.place()], changed = s.CredentialHash, true
	}
	if !changed {
		return false
	}
	secrets := make([]Secret, 0, len(hashes))
	for p := range maps.Keys(hashes) {
		secrets = append(secrets, Secret{UID: p.uid, Namespace: p.namespace, Name: p.name, CredentialHash: hashes[p]})
	}
	slices.SortFunc(secrets, func(a, b Secret) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	c.KubernetesSecrets = secrets
	return true
}

// addAccounts notes service accounts and says whether one of them is new.
func (c *Credentials) addAccounts(used []ServiceAccount) (changed bool) {
	accounts := slices.Clone(c.KubernetesServiceAccounts)
	for _, a := range used {
		if len(accounts) < maxSecrets && !slices.Contains(accounts, a) {
			accounts, changed = append(accounts, a), true
		}
	}
	if !changed {
		return false
	}
	slices.SortFunc(accounts, func(a, b ServiceAccount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	c.KubernetesServiceAccounts = accounts
	return true
}
