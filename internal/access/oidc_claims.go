package access

import (
	"fmt"
	"strings"
)

// subjectPrefix keeps the names of people whom only a number tells apart from those of tokens.
const subjectPrefix = "oidc:"

// identityOf reads who somebody is, and what they may do, from the claims that the provider makes.
func (c *OIDCConfig) identityOf(subject string, claims map[string]any) (Identity, error) {
	name, err := c.nameOf(subject, claims)
	if err != nil {
		return Identity{}, err
	}
	if err := CheckName(name); err != nil {
		return Identity{}, &DeniedError{Why: "the name that the provider of identities gives cannot be used: " + err.Error()}
	}
	role := c.DefaultRole
	for _, value := range texts(claim(claims, c.RoleClaim)) {
		if mapped, ok := c.Roles[value]; ok && mapped.Allows(role) {
			role = mapped
		}
	}
	if role == None {
		return Identity{}, &DeniedError{Role: true, Why: fmt.Sprintf("%s has no role here: none of the values of the claim "+
			"%s is one of --oidc-roles; ask an admin of this server", name, c.RoleClaim)}
	}
	return Identity{Name: name, Role: role, Subject: subject}, nil
}

// nameOf is what the audit log calls somebody. An email counts when the provider has verified it: others could choose
// that of somebody else.
func (c *OIDCConfig) nameOf(subject string, claims map[string]any) (string, error) {
	if c.UserClaim != "" {
		name, ok := claim(claims, c.UserClaim).(string)
		if !ok {
			return "", &DeniedError{Why: "the provider of identities does not say the claim " + c.UserClaim +
				", which --oidc-user-claim asks for"}
		}
		return name, nil
	}
	email, _ := claims["email"].(string)
	if verified, _ := claims["email_verified"].(bool); verified && email != "" {
		return email, nil
	}
	return subjectPrefix + subject, nil
}

// claim finds a claim by its name, or by names with dots between: a member of a member.
func claim(claims map[string]any, path string) any {
	if value, ok := claims[path]; ok { // names may be URLs, with dots
		return value
	}
	first, rest, more := strings.Cut(path, ".")
	inner, ok := claims[first].(map[string]any)
	if !more || !ok {
		return nil
	}
	return claim(inner, rest)
}

// texts is a claim that is a text, or a list of them.
func texts(value any) (all []string) {
	switch v := value.(type) {
	case string:
		return []string{v}
	case []any:
		for _, one := range v {
			if text, ok := one.(string); ok {
				all = append(all, text)
			}
		}
	}
	return all
}
