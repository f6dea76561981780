package structured

import "testing"

// Configuration files are read or refused, whatever they say.
func FuzzConfigurations(f *testing.F) {
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: https://i, audiences: [a]}\n  claimMappings: {username: {claim: sub, prefix: ''}}\n"))
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := authentication(data); err == nil && c == nil {
			t.Fatalf("nothing is made of %q", data)
		}
		if c, err := parseAuthorization(data, nil); err == nil && c == nil {
			t.Fatalf("nothing is made of %q", data)
		}
	})
}
