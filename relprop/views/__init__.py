"""An Explanation as a picture. Views see nothing but the Explanation."""
