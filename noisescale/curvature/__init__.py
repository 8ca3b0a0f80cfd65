"""What takes the Hessian: B_noise by Hessian-vector products and by line searches along gradients."""
